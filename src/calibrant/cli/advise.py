"""`calibrant advise`: which method to use, given what you may do, from measurements that ship with the package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from textwrap import fill
from typing import Annotated, Any

import typer

from calibrant.cli.console import block, block_json, say
from calibrant.display import aligned
from calibrant.errors import InputError
from calibrant.report import advice
from calibrant.types import SCHEMA

WIDTH = 80
COLUMNS = (
    ("NLL", "nll", 1, 3),
    ("ECE, %", "ece", 100, 1),
    ("AUROC", "auroc", 100, 1),
    ("scaled", "nll_scaled", 1, 3),
    ("shifted", "nll_shifted", 1, 3),
)
"""The (title, column of the evidence, factor, digits) of each column of the table."""


def advise(
    method: Annotated[
        str | None, typer.Argument(help="one method: what it did on every network; --json adds intervals")
    ] = None,
    retrain: Annotated[bool | None, typer.Option(help="whether you may train the network again")] = None,
    passes: Annotated[int | None, typer.Option(help="forward passes that a prediction may take")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON to stdout, with the rows of evidence")] = False,
) -> None:
    if method is not None:
        if retrain is not None or passes is not None:
            raise InputError("--retrain and --passes choose among methods; leave them out with one method")
        _one(method, as_json)
        return
    found = [(s, advice.options(s)) for s in advice.situations(retrain, passes)]
    if as_json:
        shown = [
            {**asdict(s), "advice": advice.sentence(options), "options": [_record(o) for o in options]}
            for s, options in found
        ]
        block_json({"schema": SCHEMA, "situations": shown, "rows": advice.shipped()["rows"]})
        return
    for s, options in found:
        say(f"{s.says}.")
        block(fill(advice.sentence(options), WIDTH))
        say()
    _, most = found[-1]
    rows = [("*" if o.recommended else "?" if o.promising else "", *advice.line(o)) for o in most]
    block("\n".join(aligned([("", *advice.HEAD), *rows])))
    say("* recommended, ? promising")
    for note in advice.NOTES:
        block(fill(note, WIDTH))
    say("What a method (pep, swa, …) did, network by network:")
    say("next: calibrant advise METHOD")


def _one(method: str, as_json: bool) -> None:
    rows, about = advice.rows(method), advice.shipped()["methods"][method]
    if as_json:
        block_json({"schema": SCHEMA, "method": method, **about, "rows": rows})
        return
    say(f"{about['title']} (trainings {about['trainings']}, passes {about['passes']}), minus the plain network")
    if not rows:
        say("not measured yet")
        return
    head = ("network", "seeds", *(title for title, *_ in COLUMNS))
    block("\n".join(aligned([head, *((row["where"], str(row["seeds"]), *cells_of(row["values"])) for row in rows)])))
    for row in rows:
        if row["scale"] != "paper":
            say(f"{row['where']}: schedule {row['scale']}, not the full one")
    for row in rows:
        if row["caveat"]:
            say(f"{row['where']}: {row['caveat']}")
    say("* beyond noise, by Holm over the methods of a network. scaled: NLL, both sides")
    say("temperature-scaled; shifted: NLL over corruptions. Intervals: --json")


def cells_of(values: Mapping[str, Any]) -> list[str]:
    """The cells of one row of evidence, in the order of `COLUMNS`."""
    out = []
    for _, column, scale, digits in COLUMNS:
        v = values.get(column)
        star = "*" if v and v["word"] in ("better", "worse") else ""
        out.append("–" if v is None else f"{scale * v['mean']:+.{digits}f}{star}".replace("-", "−"))
    return out


def _record(option: advice.Option) -> dict[str, Any]:
    return {**asdict(option), "recommended": option.recommended}
