"""Any value as the text of one cell: what generic tables (candidates, decompositions, conventions) are made of."""

from __future__ import annotations

from typing import Any

from calibrant.report.numbers import DASH


def cell(value: Any) -> str:
    """One value of a generic table as text: numbers to four digits, estimates with their interval."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4f}".replace("-", "\N{MINUS SIGN}")
    if isinstance(value, dict) and "value" in value:
        value, low, high = (value.get(k) for k in ("value", "low", "high"))
        return cell(value) if low is None or high is None else f"{cell(value)} [{cell(low)}, {cell(high)}]"
    if isinstance(value, dict):
        return ", ".join(f"{k} {cell(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(v) for v in value)
    return str(value)
