"""Convert the settings of an attack to plain Python numbers, whatever library they come from.

The annotations of an attack say what its fields are (`int`, `float`, `bool`, or one of them `| None`). They are checked
here once, so that no attack has to handle a text, a list or an infinity. Each attack checks the range of its numbers.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from calibrant.errors import InputError

UNBOUNDED = ("norm",)
"""Settings that may be infinite, besides those with an infinite default."""
SEEDS = range(-(2**63), 2**64)
"""The whole numbers that a torch.Generator takes as a seed; no other setting is larger."""


def convert(attack: Any) -> None:
    """Replace every numeric setting of the (frozen) record by a Python number, or raise an error that names it."""
    for field in fields(attack):
        if not field.init:  # computed by the attack itself
            continue
        kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", "")
        kind, _, other = kind.partition(" | ")
        value = getattr(attack, field.name)
        # a union such as `float | list[float]` is not checked
        if kind not in _KINDS or other not in ("", "None") or (other and value is None):
            continue
        infinite = {"infinite": True} if field.name in UNBOUNDED or field.default == math.inf else {}
        object.__setattr__(attack, field.name, _KINDS[kind](field.name, value, **infinite))


def number(name: str, value: Any, *, infinite: bool = False) -> float:
    try:
        found = math.nan if isinstance(value, (str, bytes, bool, np.bool_)) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # a list, an object, several numbers, 10**400
        found = math.nan
    if math.isnan(found) or (math.isinf(found) and not infinite):
        raise InputError(f"{name}={_shown(value)} must be a number{'' if infinite else ', and finite'}")
    return found


def whole_number(name: str, value: Any) -> int:
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        found = None
    if found is None or found not in SEEDS:
        raise InputError(f"{name}={_shown(value)} must be a whole number")
    return found


def boolean(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name}={_shown(value)} must be True or False")
    return bool(value)


_KINDS: dict[str, Callable[..., Any]] = {"float": number, "int": whole_number, "bool": boolean}


def _shown(value: Any) -> str:
    """Return the value as one short line."""
    text = " ".join(f"{value!r}".split()) if not isinstance(value, int) or abs(value) < 10**20 else "a huge number"
    return text if len(text) <= 60 else f"{text[:60]}…"


def at_least(settings: Any, **lowest: float) -> None:
    """Refuse a setting below its lowest value; None, a setting that is not given, passes."""
    for name, low in lowest.items():
        if (value := getattr(settings, name)) is not None and not value >= low:
            raise InputError(f"{name}={value} must be {low:g} or more")


def positive(settings: Any, *names: str) -> None:
    """Refuse a setting of zero or less; None, a setting that is not given, passes."""
    for name in names:
        if (value := getattr(settings, name)) is not None and not value > 0:
            raise InputError(f"{name}={value} must be positive")
