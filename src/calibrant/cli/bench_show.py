"""`calibrant bench show|report|plan`: the papers' tables and claims beside our numbers, and the cost of the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.console import block, block_json, say
from calibrant.cli.options import Json
from calibrant.errors import FailedError, FileError, InputError, unknown
from calibrant.types import SCHEMA

if TYPE_CHECKING:
    from calibrant.bench.place import Place
    from calibrant.bench.plan import Cost
    from calibrant.bench.reproduction import Entry
    from calibrant.bench.store import Cell, Store
    from calibrant.papers import Experiment
    from calibrant.papers.reported import Table

Results = Annotated[Path, typer.Option(help="folder of the cells")]
WHAT = "PAPER, PAPER/TABLE or PAPER/TABLE/ROW; by default everything measured"


@contextmanager
def readable(results: Path) -> Iterator[Store]:
    """The store. Damaged or edited files are reported and left out, and the command fails at its end."""
    from calibrant.bench.store import Store

    bad: set[str] = set()

    def tell(error: FileError) -> None:
        if (words := str(error)) not in bad:
            bad.add(words)
            say(words, err=True)

    yield Store(results, tell)
    if bad:
        raise FailedError(
            f"some files of {results} could not be read and were left out (see above); delete such a file, and "
            "`calibrant bench run` measures its cell again"
        )


def show(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=WHAT)] = "",
    results: Results = Path("results"),
    layout: Annotated[str, typer.Option("--format", help="text, markdown or latex")] = "text",
    as_json: Json = False,
) -> None:
    """Show the papers' tables beside our numbers, with verdicts, and below them the cells that are in no table."""
    from calibrant.bench.table_text import FORMATS

    if layout not in FORMATS:
        raise unknown("format", layout, FORMATS)
    with readable(results) as store:
        _show(what, list(store.cells()), results, layout, as_json)


def _show(what: str, cells: list[Cell], results: Path, layout: str, as_json: bool) -> None:
    from calibrant.bench.reproduction import entries_of
    from calibrant.bench.table_text import FORMATS, text_of
    from calibrant.bench.tables import lines

    tables, others = _wanted(what, cells, results)
    found = [(table, entries_of(table, cells)) for table in tables]
    if as_json:
        shown = [_record(table, entries) for table, entries in found]
        block_json({"schema": SCHEMA, "tables": shown, "lines": [asdict(line) for line in lines(others)]})
        return
    idle = [table for table, entries in found if all(e.measured is None for e in entries)]
    for table, entries in found:
        if table not in idle:
            block(f"{FORMATS[layout](text_of(table, entries))}\n")
    if others and layout == "text":
        say_cells(others)
    begun = {c.experiment for c in others}
    uncounted = [t.name for t in idle if any(r.experiment in begun for r in t.rows)]
    if uncounted:
        say(f"only smoke runs, failed or stale cells, which stand in no table: {', '.join(uncounted)}")
    if not_run := [t.name for t in idle if t.name not in uncounted]:
        say(f"not run: {', '.join(not_run)}")


def report(
    out: Annotated[Path, typer.Option("-o", "--out", help="the HTML page to write")],
    results: Results = Path("results"),
    as_json: Json = False,
) -> None:
    """Write one page for all papers: each claim in the paper's words, our numbers, the verdict, a figure, the cost."""
    from calibrant.files import outputs

    outputs.check((out, outputs.PAGE), inputs=[results])
    with readable(results) as store:
        _report(list(store.cells()), out, results, as_json)


def _report(cells: list[Cell], out: Path, results: Path, as_json: bool) -> None:
    from calibrant.bench import claims, claims_page
    from calibrant.files import atomic
    from calibrant.provenance import command

    if not cells:
        raise InputError(f"no cells under {results}; pass their folder with --results")
    atomic.write_text(out, claims_page.render(cells, command=command()))
    found = claims.summaries(cells)
    if as_json:
        block_json(
            {
                "schema": SCHEMA,
                "claims": [
                    {
                        "claim": s.claim.name,
                        "where": s.claim.where,
                        "says": s.claim.says,
                        "words": s.claim.words,
                        "verdict": s.word,
                        "comparisons": [dict(zip(claims.HEAD, row, strict=True)) for row in claims.rows(s)],
                        "caveats": list(s.caveats),
                        "gpu_minutes": s.minutes,
                    }
                    for s in found
                ],
            }
        )
        return
    wide = max(len(s.claim.name) for s in found)
    for s in found:
        say(f"{s.claim.name:<{wide}} {s.word:<14} {s.count}")
    say(f"the page, for a browser: {out}")


def _wanted(what: str, cells: list[Cell], results: Path) -> tuple[list[Table], list[Cell]]:
    """The tables to show, and the cells that stand in no table: of other rows, smoke runs, failed and stale cells."""
    from calibrant.bench.seeds import SMOKE
    from calibrant.papers import experiments
    from calibrant.papers.reported import TABLES

    name = what.strip("/")
    tables = [t for t in TABLES.values() if not name or f"{t.name}/".startswith(f"{name}/")]
    in_tables = {r.experiment for t in tables for r in t.rows}
    under = [c for c in cells if not name or f"{c.experiment}/".startswith(f"{name}/")]
    if not under and not any(c.experiment in in_tables for c in cells):
        if name and not tables:
            experiments(name)  # raises for a name that no paper has
        raise InputError(
            f"no cells under {results / name}; measure some with `calibrant bench run {name or 'PAPER'}`, "
            "or pass their folder with --results"
        )
    return tables, [c for c in under if c.experiment not in in_tables or not c.counts or c.scale == SMOKE]


def _record(table: Table, entries: Sequence[Entry]) -> dict[str, Any]:
    return {
        "table": table.name,
        "where": table.where,
        "caption": table.caption,
        "oracle": table.oracle or None,
        "rows": [
            {
                "block": e.block,
                "row": e.row,
                "variant": e.source.variant,
                "metric": e.column.metric,
                "experiment": e.source.experiment or None,
                "reported": {
                    "value": e.reported.value,
                    "deviation": e.reported.spread,
                    "mark": e.reported.mark or None,
                },
                "scale": None if e.group is None else e.group.scale,
                "settings": None if e.group is None else e.group.settings,
                "measured": None if e.measured is None else asdict(e.measured),
                "verdict": None if e.verdict is None else asdict(e.verdict),
                "caveats": list(e.caveats),
            }
            for e in entries
        ],
    }


def say_cells(cells: Sequence[Cell]) -> None:
    """Print every number of the cells over seeds, row by row."""
    from calibrant.bench.tables import lines
    from calibrant.report import numbers
    from calibrant.report.numbers import metric_of
    from calibrant.types import Estimate

    found = lines(cells)
    for name, scale, settings in dict.fromkeys((x.experiment, x.scale, x.settings) for x in found):
        rows = [x for x in found if (x.experiment, x.scale, x.settings) == (name, scale, settings)]
        seeds = max(x.seeds for x in rows)
        runs = "single run" if seeds == 1 else f"{seeds} seeds"
        small = "" if scale == "paper" else f", scale {scale}: do not compare with the paper"
        say(f"{name} ({runs}{small}{', ' + settings if settings else ''})")
        wide, metric = (max(len(getattr(x, of)) for x in rows) for of in ("variant", "metric"))
        say(f"  {'':<{wide}} {'':<{metric}} {'paper':>9} {'measured':>9}  95% interval")
        for x in rows:
            unit = metric_of(x.metric)
            reported, mean = (f"{numbers.value(unit, v):>9}" for v in (x.reported, x.mean))
            known = x.low is not None and x.high is not None
            bounds = f"{numbers.interval(unit, Estimate(x.mean, x.low, x.high))} of {x.of}" if known else numbers.DASH
            say(f"  {x.variant:<{wide}} {x.metric:<{metric}} {reported} {mean}  {bounds}")
    for of in dict.fromkeys(x.of for x in found if x.seeds == 1 and x.of != "nothing"):
        say(f"an interval of {of} says how sure one trained network's number is, and nothing about the method")
    for cell in cells:
        if cell.status == "failed":
            say(f"{cell.experiment} seed {cell.seed} failed: {cell.error}")
        elif cell.stale:
            say(f"{cell.experiment} seed {cell.seed} is stale: made by an earlier edition of a step")


def say_plan(asked: Sequence[Experiment], seeds: int | None, scale: str | int, place: Place, as_json: bool) -> None:
    """Print the trainings and GPU minutes that each row still needs, at the paces of the store."""
    from calibrant.bench.plan import plan

    with readable(place.results) as store:
        _say_plan(plan(asked, store.cells(), seeds, scale, place), as_json)


def _say_plan(costs: Sequence[Cost], as_json: bool) -> None:
    from calibrant.bench.plan import GPUS, wall

    total = sum(c.total or 0.0 for c in costs)
    if as_json:
        rows = [asdict(c) for c in costs]
        block_json({"schema": SCHEMA, "rows": rows, "gpu_minutes": total, "wall": {g: wall(costs, g) for g in GPUS}})
        return
    wide = max(len(c.experiment) for c in costs)
    say(f"{'':<{wide}}  done  to train  epochs  GPU minutes")
    for c in costs:
        minutes = "unknown" if c.total is None else f"{c.total:.1f}"
        say(f"{c.experiment:<{wide}}  {c.done:>4}  {c.trainings:>8}  {c.epochs:>6}  {minutes:>11}  {c.pace}")
    trainings = sum(c.trainings for c in costs)
    unknown = sum(c.unpaced for c in costs)
    left = f", {unknown} of them without a measured pace and not counted" if unknown else ""
    times = ", ".join(f"{wall(costs, g):.0f} on {g}" for g in GPUS)
    say(f"{trainings} trainings{left}: {total:.0f} GPU minutes. Minutes to wait by number of GPUs: {times}")
