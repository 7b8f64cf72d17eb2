"""A scalar root by Newton's steps inside a bracket, with a certificate of what was found.

`f` returns (value, slope) of an increasing function of x. Every evaluation tightens the bracket. If a step would leave
the bracket, or the bracket shrinks too slowly, it is bisected, so the root is right whenever the signs at the two ends
are. Steps go past Newton's estimate by a quarter of the tolerance, so that near the root they alternate between its two
sides and both ends close in. The certificate is a change of sign across a bracket narrower than `tolerance`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Certificate:
    """The root is in [low, high], with f(low) ≤ 0 ≤ f(high), or beyond the end that `bound` names."""

    root: float
    low: float
    high: float
    f_low: float
    f_high: float
    evaluations: int
    bound: Literal["low", "high"] | None = None

    @property
    def sign_change(self) -> bool:
        return self.bound is None and self.f_low <= 0 <= self.f_high

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "sign_change": self.sign_change, "width": self.high - self.low}


def increasing_root(
    f: Callable[[float], tuple[float, float]],
    low: float,
    high: float,
    start: float,
    tolerance: float,
    stride: float = 2.0,
    limit: int = 300,
) -> Certificate:
    """The root of an increasing f in [low, high], to within `tolerance` in x, searched from `start`.

    The two ends are evaluated only if the search reaches them. If f has the same sign everywhere, that end is returned
    and named in `bound`. No step is longer than `stride`.
    """
    assert low < high and tolerance > 0
    a, b, f_a, f_b = low, high, None, None
    x, width = min(max(start, low), high), high - low
    for count in range(1, limit + 1):
        value, slope = f(x)
        if value <= 0:
            a, f_a = x, value
        if value >= 0:
            b, f_b = x, value
        if x == high and value < 0:
            return Certificate(high, high, high, value, value, count, bound="high")
        if x == low and value > 0:
            return Certificate(low, low, low, value, value, count, bound="low")
        if f_a is not None and f_b is not None and b - a <= tolerance:
            break
        step = -value / slope if slope > 0 else (-stride if value > 0 else stride)
        step += 0.25 * tolerance if value < 0 else -0.25 * tolerance
        if count > 4 and (f_a is None or f_b is None):  # only one sign so far, so steps grow
            step = math.copysign(max(abs(step), tolerance * 4.0 ** min(count - 4, 60)), step)
        x = min(max(x + min(max(step, -stride), stride), low), high)
        if f_a is not None and f_b is not None:
            crawls = count % 5 == 0 and b - a > 0.2 * width
            width = b - a if count % 5 == 0 else width
            if crawls or not a < x < b:
                x = (a + b) / 2
    assert f_a is not None and f_b is not None
    # between two ends this close, the function is nearly a line
    root = a if f_a == f_b else min(max(a - f_a * (b - a) / (f_b - f_a), a), b)
    return Certificate(root, a, b, f_a, f_b, count)
