"""Options that several verbs share, and records of options that belong together.

A parameter of a verb may be a record: a frozen dataclass whose fields are options. The command line shows the fields
(`unfolded`), and the verb gets the record. `help` sorts options into groups.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from calibrant.errors import InputError

Number = TypeVar("Number", int, float)

Json = Annotated[bool, typer.Option("--json", help="print JSON to stdout")]
Html = Annotated[Path | None, typer.Option(help="write an HTML report to this file")]
Intervals = Annotated[
    bool, typer.Option("--intervals/--no-intervals", help="leave out the 95% intervals; this is faster")
]
Metrics = Annotated[str | None, typer.Option(help="names, separated by commas (see `calibrant list metrics`)")]
Everything = Annotated[bool, typer.Option("--all", help="print every metric instead of the main six")]
Bins = Annotated[int, typer.Option(help="number of confidence bins")]
BootstrapSeed = Annotated[int, typer.Option("--seed", help="seed of the bootstrap")]
ClassAxis = Annotated[int, typer.Option(help="axis of the classes: 1 for logits [N, K, H, W]")]
MapFolder = Annotated[Path, typer.Argument(metavar="MAP", help="folder that `calibrant fit` or `decide` wrote")]

Models = Annotated[
    list[str],
    typer.Argument(
        metavar="MODEL", help="RUN/, timm:NAME, torchvision:NAME or package.module:factory[@WEIGHTS or @RUN/]"
    ),
]
DataRoot = Annotated[Path | None, typer.Option(help="folder of the data sets; by default CALIBRANT_DATA")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda")]


def separated(text: str) -> list[str]:
    """The words between commas, each once."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def numbers(text: str, option: str, kind: Callable[[str], Number], instead: str = "") -> list[Number]:
    """The finite numbers between commas; `kind` is int or float, and `instead` is what else the error suggests."""
    try:
        found = [kind(word) for word in text.split(",") if word.strip()]
    except ValueError:
        found = []
    if not found or not all(-math.inf < number < math.inf for number in found):
        called = "whole" if kind is int else "finite"
        raise InputError(f"{option} {text!r} must be {called} numbers separated by commas{instead}")
    return found


def metric_names(text: str | None) -> list[str] | None:
    """The metrics that `--metrics` names; None for the default ones."""
    from calibrant.metrics.evaluate import chosen_metrics

    names = None if text is None else separated(text)
    if not chosen_metrics(names):
        raise InputError("--metrics is empty; pass names of `calibrant list metrics`, separated by commas")
    return names


def unfolded(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the options of its records as parameters of its own, which is what typer reads."""
    hints = get_type_hints(verb, include_extras=True)
    records = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    if not records:
        return verb
    own = [p.replace(annotation=hints[p.name]) for p in inspect.signature(verb).parameters.values()]
    options = [o for p in own for o in (_options(p.annotation) if p.name in records else [p])]

    @wraps(verb)
    def whole(**given: Any) -> None:
        made = {name: _made(kind, given) for name, kind in records.items()}
        verb(**{p.name: given[p.name] for p in own if p.name not in records}, **made)

    keyword = inspect.Parameter.KEYWORD_ONLY
    whole.__signature__ = inspect.Signature([o.replace(kind=keyword) for o in options])  # type: ignore[attr-defined]
    whole.__annotations__ = {o.name: o.annotation for o in options}
    return whole


def _fields(record: Any) -> list[tuple[Any, Any]]:
    """The (field, type) of every option, or record of options, in a record."""
    hints = get_type_hints(record, include_extras=True)
    return [(f, hints[f.name]) for f in fields(record)]


def _options(record: Any) -> list[inspect.Parameter]:
    keyword, out = inspect.Parameter.KEYWORD_ONLY, []
    for f, kind in _fields(record):
        one = inspect.Parameter(f.name, keyword, default=f.default, annotation=kind)
        out += _options(kind) if is_dataclass(kind) else [one]
    return out


def _made(record: Any, given: Mapping[str, Any]) -> Any:
    return record(**{f.name: _made(k, given) if is_dataclass(k) else given[f.name] for f, k in _fields(record)})
