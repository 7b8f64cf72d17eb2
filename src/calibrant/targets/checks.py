"""Checks of the numbers that target policies are made with."""

from __future__ import annotations

import math
from numbers import Integral, Real

from calibrant.errors import InputError


def check_classes(classes: int) -> None:
    if not isinstance(classes, Integral) or classes < 2:
        raise InputError(f"targets need at least two classes, got classes={classes!r}")


def check_number(name: str, value: float, most: float = math.inf) -> None:
    """Refuse what is no number of 0 … most, or not finite."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= most or math.isinf(value):
        allowed = "a number, 0 or more" if math.isinf(most) else f"a number in [0, {most:g}]"
        raise InputError(f"{name} must be {allowed}, got {value!r}")
