"""Any value as the text of one cell: what generic tables (candidates, decompositions, conventions) are made of."""

from __future__ import annotations

import re
from typing import Any

from calibrant.metrics import METRICS
from calibrant.report import numbers
from calibrant.types import Estimate

DASH = numbers.DASH
COUNTS = ("items", "members")  # kept as floats beside others


def cell(value: Any, column: str = "") -> str:
    """One value as text; under a column named after a metric (`ece`, `nll before`, `room_ece`) in the metric's unit.

    Numbers of no metric have four digits; estimates carry their interval."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and column in COUNTS:
        return numbers.count(round(value))
    if isinstance(value, float):
        return numbers.value(metric_of(column), value)
    if isinstance(value, dict) and "value" in value:
        value, low, high = (value.get(k) for k in ("value", "low", "high"))
        return cell(value, column) if value is None else numbers.brief(metric_of(column), Estimate(value, low, high))
    if isinstance(value, dict):
        return ", ".join(f"{k} {cell(v, str(k))}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(v, column) for v in value)
    return str(value)


def metric_of(column: str) -> str:
    """The metric or share that a column speaks of, or "": `ece_mass`, `ece verdict` and `entropy_auroc` do, `chosen` or
    a variance of something does not."""
    if column in METRICS:
        return column
    words = re.split(r"[\s_]+", column.lower())
    if "variance" in words:
        return ""
    return next((word for word in words if word in METRICS or numbers.is_percent(word)), "")
