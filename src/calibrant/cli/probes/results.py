"""Results of a probe: one file per model, so that nothing is measured twice, and the section that compares models.

    STORE/WHAT/KEY.safetensors        arrays; the header has the numbers and a hash over both

KEY is a hash of the weights, the items and every setting that changes a number. A file is written whole or not at all.
A probe that is killed loses only the model that it was measuring.
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
from calibrant.files import hashed, outputs
from calibrant.report.panels import Panel, Table
from calibrant.report.terminal import text_table
from calibrant.training.distances import network_hash
from calibrant.training.recipe import digest
from calibrant.types import Predictions, jsonable

EDITION = 3
"""Raised when the same settings would give other numbers or other arrays."""

Measured = tuple[dict[str, Any], dict[str, Tensor]]
"""The numbers of one model, for JSON, and its arrays."""


@dataclass(frozen=True, eq=False)
class Result:
    """What a probe measured of one network: numbers, and arrays by name."""

    name: str
    record: dict[str, Any]
    arrays: dict[str, Tensor]


@dataclass(frozen=True)
class Probed:
    """What a probe found: for JSON, for the terminal, and for the report with the predictions that it audits."""

    record: dict[str, Any]
    shown: Sequence[Any] = ()
    panels: Sequence[Panel] = ()
    audited: Sequence[Predictions] = ()
    results: Sequence[Result] = ()  # one per network, where networks are measured one by one


def side_by_side(
    request: Request,
    what: str,
    settings: Mapping[str, Any],
    measure: Callable[[Reference], Measured],
    panel: Callable[[Sequence[Result]], Panel],
) -> Probed:
    """Measure each model, or read what was measured before, and compare them in a section."""
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
    """Return one model's result: read it, or measure and write it."""
    own = {**settings, "fed": [model.mean, model.std], "edition": EDITION, "recipe": model.recipe}
    own["network"] = network_hash(model.members)
    path = request.place(what) / f"{digest(jsonable(own))[:16]}.safetensors"
    if not path.is_file():
        outputs.check_place(path.parent, "keep the results in with -o")
        if request.progress:
            say(f"{what}: {model.name}", err=True)
        record, tensors = measure(model)
        hashed.write_tensors(path, tensors, {"model": model.name, "record": jsonable(record)})
    arrays, head = hashed.read_tensors(path, "delete it, and it is measured again")
    return head["record"], arrays


def shown_of(what: str, section: Panel) -> list[Any]:
    """Return what the terminal shows: the section without its figures and notes."""
    tables = [narrow_table(table.head, table.rows) for table in section.tables]
    captions = [f"· {figure.caption}" for figure in section.figures]
    return [f"{what}: {section.title}", section.lead, *tables, *captions, ""]


def narrow_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """Return a table with every interval below its value: side by side, seven columns would not fit a terminal."""
    short = [name.replace(" ", "\n", 1) for name in head]
    cells = [[cell.replace(" [", "\n[") for cell in row] for row in rows]
    return text_table(Table("", short, cells))
