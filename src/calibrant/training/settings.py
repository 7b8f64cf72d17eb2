"""Plain tables (TOML, JSON, `--set key=value`) ↔ frozen records of settings, with errors that name the key.

    build(Recipe, {"epochs": 5, "optimiser": {"lr": 0.1}})     plain(recipe)     assign(table, "optimiser.lr=0.1")

An unknown key is an error that names the nearest valid one. A value of the wrong type is an error that names the key,
what it must be and what was given. Nothing is converted except an integer to a float, and lists to tuples.
"""

from __future__ import annotations

import tomllib
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from calibrant.errors import InputError, unknown
from calibrant.functional.settings import SCALARS, number, word

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """A name in one of the tables, and its options.

    Written `"focal"` or `{name = "focal", gamma = 3}`. Lists become tuples, as in the records they configure.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", {k: _tuples(v) for k, v in self.options.items()})

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, **self.options}


def build(cls: type[T], table: Mapping[str, Any], path: str = "") -> T:
    """Build a frozen record from a plain table; missing keys take their defaults."""
    hints = get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for key in table:
        if key not in known:
            raise unknown("key", path + key, [path + name for name in known])
    values: dict[str, Any] = {}
    for name, f in known.items():
        if name in table:
            values[name] = _value(hints[name], table[name], path + name)
        elif f.default is MISSING and f.default_factory is MISSING:
            raise InputError(f"key {path + name!r} is missing; it has no default")
    return cls(**values)


def plain(record: Any) -> Any:
    """The table that `build` turns back into the same record."""
    if isinstance(record, Choice):
        return {k: plain(v) for k, v in record.plain().items()}
    if is_dataclass(record) and not isinstance(record, type):
        return {f.name: plain(getattr(record, f.name)) for f in fields(record)}
    if isinstance(record, Mapping):
        return {k: plain(v) for k, v in record.items()}
    if isinstance(record, (list, tuple)):
        return [plain(v) for v in record]
    return record


def assign(table: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of the table with the dotted key set: `optimiser.lr`, `penalties.0.weight`."""
    head, _, rest = key.partition(".")
    out = dict(table)
    if not rest:
        # `--set loss=focal` replaces the whole choice: options of the old one do not carry over
        out[head] = value
        return out
    inner = out.get(head)
    if isinstance(inner, list):
        step, _, deeper = rest.partition(".")
        if not step.isdigit() or int(step) >= len(inner):
            raise InputError(f"key {key!r}: {head!r} has {len(inner)} entries; write {head}.0 … or {head}=[…]")
        items = list(inner)
        items[int(step)] = assign(_as_table(items[int(step)], head), deeper, value) if deeper else value
        out[head] = items
        return out
    out[head] = assign(_as_table(inner, key), rest, value)
    return out


def setting(text: str) -> tuple[str, Any]:
    """`key=value` from the command line; the value is read as TOML, and bare words are strings."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError(f"--set {text!r} is not key=value, e.g. --set optimiser.lr=0.1")
    try:
        return key, tomllib.loads(f"value = {value.strip()}")["value"]
    except tomllib.TOMLDecodeError:
        if value.strip()[:1] in "[{\"'":
            raise InputError(f"--set {text!r}: the value is not valid TOML") from None
        return key, value.strip()


def typed(settings: Mapping[str, Any], key: str) -> Any:
    """The value that command-line settings give to a dotted key, directly or inside a table; None if they give none."""
    table: Any = {}
    for name, value in settings.items():
        table = assign(table, name, value)
    for step in key.split("."):
        table = table.get(step) if isinstance(table, Mapping) else None
    return table


def _as_table(value: Any, key: str) -> Mapping[str, Any]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping):
        return value
    raise InputError(f"key {key!r} is inside {value!r}, which has no keys")


def check_type(hint: Any, value: Any, key: str) -> None:
    """Refuse a value that is not of the annotated type, naming the key."""
    _value(hint, value, key)


def _value(hint: Any, value: Any, path: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if hint is type(None):
        if value is None:
            return None
        raise _wrong(path, "nothing", value)
    if origin is Literal:
        return word(path, value, args)
    if origin in (Union, types.UnionType):
        return _alternative(args, value, path)
    if origin is tuple or (origin is not None and issubclass(origin, Sequence)):
        if not isinstance(value, (list, tuple)):
            raise _wrong(path, "a list", value)
        hints = [args[0]] * len(value) if len(args) == 1 or args[-1] is Ellipsis else list(args)
        if len(hints) != len(value):
            raise _wrong(path, f"a list of {len(hints)}", value)
        return tuple(_value(hint, v, f"{path}.{i}") for i, (hint, v) in enumerate(zip(hints, value, strict=True)))
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(path, "a table", value)
        return {str(k): _value(args[1], v, f"{path}.{k}") for k, v in value.items()}
    if hint is Choice:
        return as_choice(value, path)
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise _wrong(path, "a table", value)
        return build(hint, value, path + ".")  # type: ignore[arg-type]
    return _scalar(hint, value, path)


def _alternative(hints: Sequence[Any], value: Any, path: str) -> Any:
    """The value as the first of several types that it has; the error is the first type's."""
    errors = []
    for hint in hints:
        try:
            return _value(hint, value, path)
        except InputError as error:
            errors.append(error)
    raise errors[0]


def as_choice(value: Any, path: str) -> Choice:
    """A name or a table with a name, as in `loss = "focal"` and `loss = {name = "focal", gamma = 3}`."""
    if isinstance(value, str):
        return Choice(value)
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise _wrong(path, "a name, or a table with 'name'", value)
    return Choice(value["name"], {k: v for k, v in value.items() if k != "name"})


def _scalar(hint: Any, value: Any, path: str) -> Any:
    if hint is float:
        return number(path, value, infinite=True)
    if hint in SCALARS:
        return SCALARS[hint](path, value)
    if hint is str and not isinstance(value, str):
        raise _wrong(path, "text", value)
    return value  # if this is no type of TOML, the class that takes the value checks it


def _wrong(path: str, expected: str, value: Any) -> InputError:
    return InputError(f"{path}={value!r} must be {expected}")


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(_tuples(v) for v in value) if isinstance(value, (list, tuple)) else value
