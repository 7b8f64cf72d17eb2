"""Numbers as people read them. Fractions inside, percent only here; one place decides the digits."""

from __future__ import annotations

import math

from calibrant.metrics import METRICS
from calibrant.types import Estimate

DASH = "–"
SHARES = frozenset({"error", "coverage", "confidence", "consistency", "aupr", "miou"})
"""What is no metric of the table and yet a share."""


def percent(value: float | None, digits: int = 1) -> str:
    """0.9123 → '91.2%'. Never rounds what is below 1 up to '100%', nor what is above 0 down to '0%'."""
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
    """A metric's value as the tables print it: percent where the metric is a share, else four digits."""
    if number is None:
        return DASH
    if is_percent(name):
        return f"{signed(name, 100 * number, 2)}%"
    return signed(name, number, 4)


def interval(name: str, estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return DASH
    scale, digits, unit = (100, 2, "%") if is_percent(name) else (1, 4, "")
    return f"{signed(name, scale * estimate.low, digits)} … {signed(name, scale * estimate.high, digits)}{unit}"


def brief(name: str, estimate: Estimate) -> str:
    """The value with its interval, as short as it can be read: '2.98% [2.51, 3.44]', '0.2341 [0.2200, 0.2480]'."""
    shown = value(name, estimate.value)
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return shown
    scale, digits = (100, 2) if is_percent(name) else (1, 4)
    low, high = (signed(name, scale * end, digits) for end in (estimate.low, estimate.high))
    return f"{shown} [{low}, {high}]"


def is_percent(name: str) -> bool:
    """Whether people read this number in percent: shares, and differences of shares. NLL and Brier are none."""
    return METRICS[name].percent if name in METRICS else name in SHARES


def signed(name: str, number: float, digits: int) -> str:
    """Numbers that are better near zero carry their sign; the minus is a real one."""
    text = f"{number:+.{digits}f}" if name in METRICS and METRICS[name].better == "zero" else f"{number:.{digits}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def p_value(p: float | None) -> str:
    if p is None or math.isnan(p):
        return DASH
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def count(n: int) -> str:
    """12345 → '12,345'."""
    return f"{n:,}"


def items(n: int) -> str:
    """'1 item', '12,345 items'."""
    return f"{count(n)} item{'' if n == 1 else 's'}"
