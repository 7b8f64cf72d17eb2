"""Numbers as text: the only place that turns fractions into percent and chooses the number of digits."""

from __future__ import annotations

import math
import re
from typing import Any

from calibrant.metrics import METRICS
from calibrant.types import Estimate

DASH = "–"
SHARES = frozenset({"error", "coverage", "confidence", "consistency", "aupr", "miou"})
"""Shares that are not in the table of metrics."""
COUNTS = ("items", "members")
"""Columns of counts, which are stored as floats."""


def percent(value: float | None, digits: int = 1) -> str:
    """0.9123 → '91.2%'. A share below 1 is never rounded up to '100%', nor one above 0 down to '0%'."""
    if value is None:
        return DASH
    text = f"{100 * value:.{digits}f}"
    if 0.5 < value < 1:
        while float(text) >= 100 and digits < 12:
            digits += 1
            text = f"{100 * value:.{digits}f}"
        if float(text) >= 100:
            return f">\N{NO-BREAK SPACE}{100 - 10.0**-digits:.{digits}f}%"
    elif 0 < value < 0.5 and float(text) == 0:
        return f"<\N{NO-BREAK SPACE}{10.0**-digits:.{digits}f}%"
    return f"{text}%".replace("-", "\N{MINUS SIGN}")


def percent_pair(a: float, b: float) -> tuple[str, str]:
    """Two shares with just enough digits to tell them apart: ('97%', '91%'), ('91.3%', '91.0%')."""
    for digits in (0, 1, 2):
        first, second = percent(a, digits), percent(b, digits)
        if first != second:
            break
    return first, second


def value(name: str, number: float | None) -> str:
    """Return a metric's value as tables print it: in percent if the metric is a share, else with four digits."""
    if number is None:
        return DASH
    if is_percent(name):
        return f"{signed(name, 100 * number, 2)}%"
    return signed(name, number, 4)


def interval(name: str, estimate: Estimate) -> str:
    found = bounds(name, estimate)
    return DASH if found is None else f"{found[0]} … {found[1]}{'%' if is_percent(name) else ''}"


def brief(name: str, estimate: Estimate) -> str:
    """Return the value with its interval: '2.98% [2.51, 3.44]', '0.2341 [0.2200, 0.2480]'."""
    shown, found = value(name, estimate.value), bounds(name, estimate)
    return shown if estimate.value is None or found is None else f"{shown} [{found[0]}, {found[1]}]"


def short(estimate: Estimate | None, share: bool = True) -> str:
    """Return the value with its interval and fewer digits: '6.0% [3.3, 10.3]', '0.412 [0.380, 0.450]'."""
    if estimate is None or estimate.value is None:
        return DASH
    shown = percent(estimate.value) if share else f"{estimate.value:.3f}"
    if estimate.low is None or estimate.high is None:
        return shown
    scale, digits = (100, 1) if share else (1, 3)
    return f"{shown} [{scale * estimate.low:.{digits}f}, {scale * estimate.high:.{digits}f}]"


def bounds(name: str, estimate: Estimate, *, fewer: int = 0) -> tuple[str, str] | None:
    """Return both ends of the interval without a unit, with the digits of `value` less `fewer`, or None."""
    if estimate.low is None or estimate.high is None:
        return None
    scale, digits = (100, 2) if is_percent(name) else (1, 4)
    return signed(name, scale * estimate.low, digits - fewer), signed(name, scale * estimate.high, digits - fewer)


def is_percent(name: str) -> bool:
    """Whether people read this number in percent: shares and differences of shares, but not NLL or Brier."""
    return METRICS[name].percent if name in METRICS else name in SHARES


def signed(name: str, number: float, digits: int) -> str:
    """Return the number as text; metrics that are better near zero get a sign, and zero never gets a minus."""
    text = f"{number:+z.{digits}f}" if name in METRICS and METRICS[name].better == "zero" else f"{number:z.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def p_value(p: float | None) -> str:
    """'p < 0.001' or 'p = 0.032', for a sentence."""
    text = p_cell(p)
    return text if text == DASH else f"p {text}" if text.startswith("<") else f"p = {text}"


def p_cell(p: float | None) -> str:
    """'< 0.001' or '0.032', for a column of p-values."""
    if p is None or math.isnan(p):
        return DASH
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop; a terminal prints the same text without them."""
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith((".", "?", "!")) else ".")


def count(n: int) -> str:
    """12345 → '12,345'."""
    return f"{n:,}"


def items(n: int) -> str:
    """'1 item', '12,345 items'."""
    return f"{count(n)} item{'' if n == 1 else 's'}"


def cell(content: Any, column: str = "") -> str:
    """Return the content of a table's cell as text.

    If the column is named after a metric (`ece`, `nll before`, `room_ece`), the number gets the metric's unit; other
    numbers get four digits. Estimates are shown with their interval.
    """
    if content is None:
        return DASH
    if isinstance(content, bool):
        return "yes" if content else "no"
    if isinstance(content, float):
        return count(round(content)) if column in COUNTS else value(metric_of(column), content)
    if isinstance(content, dict) and "value" in content:
        number, low, high = (content.get(key) for key in ("value", "low", "high"))
        return cell(number, column) if number is None else brief(metric_of(column), Estimate(number, low, high))
    if isinstance(content, dict):
        return ", ".join(f"{key} {cell(inner, str(key))}" for key, inner in content.items())
    if isinstance(content, (list, tuple)):
        return ", ".join(cell(inner, column) for inner in content)
    return str(content)


def metric_of(column: str) -> str:
    """Return the metric or share that a column is named after, as in `ece_mass`, `ece verdict` and `entropy_auroc`.

    For other names, such as `chosen` or the variance of something, it is "".
    """
    if column in METRICS:
        return column
    words = re.split(r"[\s_]+", column.lower())
    if "variance" in words:
        return ""
    return next((word for word in words if word in METRICS or is_percent(word)), "")
