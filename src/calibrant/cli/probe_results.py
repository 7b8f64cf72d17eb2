"""What a probe found, and what it measured of each model: kept under the folder of results, and not measured twice.

    STORE/WHAT/KEY.safetensors        arrays; the header holds the numbers and a hash over both

KEY is a hash of the weights, of the items and of every setting that changes a number. A file is written whole or not at
all: a kill loses the model in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calibrant.cli.console import say
from calibrant.files import atomic, hashed
from calibrant.types import jsonable

if TYPE_CHECKING:
    from torch import Tensor

    from calibrant.cli.probe_request import Request
    from calibrant.ensembles.reference import Reference
    from calibrant.report.panels import Panel
    from calibrant.report.probes import Result
    from calibrant.types import Predictions

EDITION = 2
"""Raised when a probe of the same settings would find other numbers."""

Measure = Callable[["Reference"], tuple[dict[str, Any], dict[str, "Tensor"]]]
"""A model → numbers for JSON, and arrays."""


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
    measure: Measure,
    panel: Callable[[Sequence[Result]], Panel],
) -> Probed:
    """Each model measured (or read, where it was before), and the section that compares them."""
    from calibrant.cli.probe_results import results

    request.rehearse()
    found = results(request, what, settings, measure)
    section = panel(found)
    record = {
        "settings": {k: v for k, v in settings.items() if v is not None},
        "models": [{"name": m.name, **r.record} for m, r in zip(request.models, found, strict=True)],
        "says": [section.lead, *(figure.caption for figure in section.figures)],
    }
    return Probed(record, shown_of(what, section), [section], results=found)


def shown_of(what: str, section: Panel) -> list[Any]:
    """For the terminal: what the page says, without its figures and small print."""
    tables = [narrow_table(table.head, table.rows) for table in section.tables]
    captions = [f"· {figure.caption}" for figure in section.figures]
    return [f"{what}: {section.title}", section.lead, *tables, *captions, ""]


def narrow_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """An interval stands whole below its value: side by side, seven columns do not fit a terminal."""
    from calibrant.report.terminal import records_table

    short = [name.replace(" ", "\n", 1) for name in head]
    cells = [[cell.replace(" [", "\n[") for cell in row] for row in rows]
    return records_table([dict(zip(short, row, strict=True)) for row in cells])


def results(request: Request, what: str, settings: Mapping[str, Any], measure: Measure) -> list[Result]:
    """Each model's result: read if it is there, else measured and written."""
    from calibrant.display import short_names
    from calibrant.report.probes import Result
    from calibrant.training.distances import network_hash
    from calibrant.training.recipe import digest

    names = short_names([model.name for model in request.models])
    out = []
    for name, model in zip(names, request.models, strict=True):
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
        out.append(Result(name, head["record"], arrays))
    return out
