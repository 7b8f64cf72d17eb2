"""Settings of an attack as plain numbers, whatever library they come from; anything else is an error.

The annotations of an attack say what its fields are (`int`, `float`, `bool`, or one of them `| None`). They are checked
here once, so that no attack meets a text, a list or an infinity in its steps. The attack checks the range of a number.
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
"""What a generator takes; no count is larger."""


def settle(attack: Any) -> None:
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
        endless = {"endless": True} if field.name in UNBOUNDED or field.default == math.inf else {}
        object.__setattr__(attack, field.name, _KINDS[kind](field.name, value, **endless))


def number(name: str, value: Any, *, endless: bool = False) -> float:
    try:
        found = math.nan if isinstance(value, (str, bytes, bool, np.bool_)) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # a list, an object, several numbers, 10**400
        found = math.nan
    if math.isnan(found) or (math.isinf(found) and not endless):
        raise InputError(f"{name}={_said(value)} must be a number{'' if endless else ', and finite'}")
    return found


def whole(name: str, value: Any) -> int:
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except (TypeError, ValueError, RuntimeError):
        found = None
    if found is None or found not in SEEDS:
        raise InputError(f"{name}={_said(value)} must be a whole number")
    return found


def truth(name: str, value: Any) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name}={_said(value)} must be True or False")
    return bool(value)


_KINDS: dict[str, Callable[..., Any]] = {"float": number, "int": whole, "bool": truth}


def _said(value: Any) -> str:
    """As one short line."""
    text = " ".join(f"{value!r}".split()) if not isinstance(value, int) or abs(value) < 10**20 else "a huge number"
    return text if len(text) <= 60 else f"{text[:60]}…"


def at_least(settings: Any, **lowest: float) -> None:
    """Refuse a setting below its lowest value."""
    for name, low in lowest.items():
        if not getattr(settings, name) >= low:
            raise InputError(f"{name}={getattr(settings, name)} must be {low:g} or more")


def positive(settings: Any, *names: str) -> None:
    for name in names:
        if not getattr(settings, name) > 0:
            raise InputError(f"{name}={getattr(settings, name)} must be positive")
