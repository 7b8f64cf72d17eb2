"""Check settings by the annotations of their frozen record: calibrators, attacks, and the leaves of a recipe.

The annotation of a setting says what it is: `int`, `float`, `bool`, words (`Literal`), or one of them `| None`. Numbers
may come from any library and become Python numbers, so that no method has to handle a text, a list or an array. Each
record checks the range of its numbers itself.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

from calibrant.errors import InputError

SEEDS = range(-(2**63), 2**64)
"""The whole numbers that a torch.Generator takes as a seed; no other setting is larger."""


def convert(record: Any, prefix: str = "", unbounded: tuple[str, ...] = ()) -> None:
    """Replace the settings of the (frozen) record by plain Python values, or raise an error that names the setting.

    Settings in `unbounded`, and those with an infinite default, may be infinite. Other types are not checked.
    """
    allowed = kinds_of(type(record))
    for field in fields(record):
        if not field.init:  # computed by the record itself
            continue
        kinds, name, value = set(allowed.get(field.name, ())), prefix + field.name, getattr(record, field.name)
        if value is None and NoneType in kinds:
            continue
        kinds.discard(NoneType)
        kind = kinds.pop() if len(kinds) == 1 else None  # a union such as float | list[float] is not checked
        if get_origin(kind) is Literal:
            value = word(name, value, get_args(kind))
        elif kind is float:
            value = number(name, value, infinite=field.name in unbounded or field.default == math.inf)
        elif kind in SCALARS:
            value = SCALARS[kind](name, value)
        object.__setattr__(record, field.name, value)


def types_of(target: Any) -> dict[str, Any]:
    """The types of the settings of a record, or of the parameters of a function or class; empty if they are unknown."""
    try:
        return get_type_hints(target.__init__ if inspect.isclass(target) and not is_dataclass(target) else target)
    except (NameError, TypeError):  # a name that only type checkers import, or a `functools.partial`
        return {}


def kinds_of(record: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Setting → the types that its annotation allows, such as float, NoneType or Literal[…]."""
    hints = types_of(record).items()
    return {name: get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,) for name, hint in hints}


def word(name: str, value: Any, words: tuple[Any, ...]) -> Any:
    if not any(type(value) is type(known) and value == known for known in words):
        raise InputError(f"{name}={_shown(value)} is unknown; use {' or '.join(map(repr, words))}")
    return value


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


SCALARS: dict[Any, Callable[[str, Any], Any]] = {float: number, int: whole_number, bool: boolean}


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
