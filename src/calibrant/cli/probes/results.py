"""What a probe found, and what it measured of each model: kept under the folder of results, and not measured twice.

    STORE/WHAT/KEY.safetensors        arrays; the header holds the numbers and a hash over both

KEY is a hash of the weights, of the items and of every setting that changes a number. A file is written whole or not at
all: a kill loses the model in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from calibrant.cli.console import say
from calibrant.cli.probes.request import Request
from calibrant.display import short_names
from calibrant.ensembles.reference import Reference
from calibrant.files import atomic, hashed
from calibrant.report.panels import Panel, Table
from calibrant.report.terminal import text_table
from calibrant.training.distances import network_hash
from calibrant.training.recipe import digest
from calibrant.types import Predictions, jsonable

EDITION = 2
"""Raised when a probe of the same settings would find other numbers."""

Measured = tuple[dict[str, Any], dict[str, Tensor]]
"""Numbers for JSON, and arrays, of one model."""


@dataclass(frozen=True, eq=False)
class Result:
    """What a probe measured of one network: numbers, and arrays by name."""

    name: str
    record: dict[str, Any]
    arrays: dict[str, Tensor]


@dataclass(frozen=True)
class Probed:
    """What a probe found: for JSON, for the terminal, sections of the report and the predictions that they are of."""

    record: dict[str, Any]
    shown: Sequence[Any] = ()
    panels: Sequence[Panel] = ()
    audited: Sequence[Predictions] = ()
    results: Sequence[Result] = ()  # of every network, where they were measured one by one


def side_by_side(
    request: Request,
    what: str,
    settings: Mapping[str, Any],
    measure: Callable[[Reference], Measured],
    panel: Callable[[Sequence[Result]], Panel],
) -> Probed:
    """Each model measured (or read, where it was before), and the section that compares them."""
    request.rehearse()
    names = short_names([model.name for model in request.models])
    found = [
        Result(name, *_kept(request, what, settings, measure, model))
        for name, model in zip(names, request.models, strict=True)
    ]
    section = panel(found)
    record = {
        "settings": {k: v for k, v in settings.items() if v is not None},
        "models": [{"name": m.name, **r.record} for m, r in zip(request.models, found, strict=True)],
        "says": [section.lead, *(figure.caption for figure in section.figures)],
    }
    return Probed(record, shown_of(what, section), [section], results=found)


def _kept(
    request: Request,
    what: str,
    settings: Mapping[str, Any],
    measure: Callable[[Reference], Measured],
    model: Reference,
) -> Measured:
    """One model's result: read if it is there, else measured and written."""
    own = {**settings, "fed": [model.mean, model.std], "edition": EDITION, "recipe": model.recipe}
    own["network"] = network_hash(model.members)
    path = request.place(what) / f"{digest(jsonable(own))[:16]}.safetensors"
    if not path.is_file():
        atomic.check_place(path.parent, "keep the results in with -o")
        if request.progress:
            say(f"{what}: {model.name}", err=True)
        record, tensors = measure(model)
        hashed.write_tensors(path, tensors, {"model": model.name, "record": jsonable(record)})
    arrays, head = hashed.read_tensors(path, "delete it, and it is measured again")
    return head["record"], arrays


def shown_of(what: str, section: Panel) -> list[Any]:
    """For the terminal: what the page says, without its figures and small print."""
    tables = [narrow_table(table.head, table.rows) for table in section.tables]
    captions = [f"· {figure.caption}" for figure in section.figures]
    return [f"{what}: {section.title}", section.lead, *tables, *captions, ""]


def narrow_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """An interval stands whole below its value: side by side, seven columns do not fit a terminal."""
    short = [name.replace(" ", "\n", 1) for name in head]
    cells = [[cell.replace(" [", "\n[") for cell in row] for row in rows]
    return text_table(Table("", short, cells))
