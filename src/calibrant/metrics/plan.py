"""How many items for an interval of a given width? From the interval of the items at hand:

    n_needed = n · (width_now / width)²

Every interval here shrinks like 1/√n, whatever its method. Its present width holds the file's own variance and, with
groups, their design effect. The answer is a forecast: the present width is itself an estimate.
"""

from __future__ import annotations

import math

from calibrant.errors import InputError
from calibrant.types import Report


def plan(report: Report, width: float) -> dict[str, int | None]:
    """Metric → items for a 95% interval of this width (0.02: two points); None where there is no interval."""
    if not 0 < width < 1:
        raise InputError(f"width {width:g}; pass the width of the interval as a share, such as 0.02 for two points")
    out: dict[str, int | None] = {}
    for name, e in report.items():
        now = None if e.low is None or e.high is None else e.high - e.low
        out[name] = math.ceil(report.n * (now / width) ** 2) if now else None
    return out
