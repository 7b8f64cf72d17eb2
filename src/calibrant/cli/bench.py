"""`calibrant bench run|status|show|compare`: measure a paper's rows, see what is done, reported against measured."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from calibrant.cli.console import block_json, say
from calibrant.errors import InputError
from calibrant.types import SCHEMA

bench = typer.Typer(help="Measure the papers' tables again, one cell at a time, and compare.", no_args_is_help=True)

WHAT = "PAPER, PAPER/TABLE or PAPER/TABLE/ROW"
What = Annotated[str, typer.Argument(metavar="WHAT", help=f"{WHAT} (`calibrant list papers`)")]
Results = Annotated[Path, typer.Option(help="folder of the cells")]
Seeds = Annotated[
    int | None, typer.Option(help="seeds 0 … N−1; by default as many as in the paper (smoke: one)", min=1)
]
ScaleOption = Annotated[str, typer.Option(help="smoke, small (a tenth of the epochs) or paper")]
Json = Annotated[bool, typer.Option("--json", help="print JSON to stdout")]


@bench.command()
def run(
    what: What,
    seeds: Seeds = None,
    scale: ScaleOption = "paper",
    results: Results = Path("results"),
    runs: Annotated[Path, typer.Option(help="folder of the trainings, which are resumed")] = Path("runs"),
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="a setting of the recipe, as key=value; repeatable")
    ] = None,
    data_root: Annotated[Path | None, typer.Option(help="folder of the data; by default CALIBRANT_DATA")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    as_json: Json = False,
) -> None:
    """Measure every cell that is not in the store yet."""
    from calibrant.bench.measure import measure
    from calibrant.bench.store import Store
    from calibrant.papers import experiments
    from calibrant.training.run import How
    from calibrant.training.settings import setting, typed

    store, size = Store(results), _scale(scale)
    overrides = dict(setting(s) for s in settings or ())
    how = How(device, root=data_root, quiet=as_json and not sys.stderr.isatty(), factory=typed(overrides, "data.name"))
    todo = [(e, seed) for e in experiments(what) for seed in range(_seeds(seeds, size) or e.seeds)]
    cells = []
    for i, (experiment, seed) in enumerate(todo, 1):
        words = f"calibrant bench run {experiment.name} --seeds {seed + 1} --scale {scale}"
        command = " ".join([words, *(f"--set {s}" for s in settings or ())])
        say(f"{experiment.name}, seed {seed}, {scale} ({i} of {len(todo)})", err=True)
        cells.append(measure(experiment, seed, size, store, runs, how, overrides=overrides, command=command))
    if as_json:
        _json({"cells": [c.to_dict() for c in cells]})
    else:
        _lines(cells)


@bench.command()
def status(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"{WHAT}; by default every paper")] = "",
    seeds: Seeds = None,
    scale: ScaleOption = "paper",
    results: Results = Path("results"),
    as_json: Json = False,
) -> None:
    """How much of each row is measured."""
    from calibrant.bench.store import Store
    from calibrant.bench.tables import standing
    from calibrant.papers import PAPERS, experiments

    wanted = [e for name in ([what] if what else PAPERS) for e in experiments(name)]
    rows = standing(wanted, Store(results), _scale(scale), _seeds(seeds, _scale(scale)))
    if as_json:
        _json({"rows": [asdict(r) for r in rows]})
        return
    wide = max(len(r.experiment) for r in rows)
    for r in rows:
        say(
            f"{r.experiment:<{wide}} {r.done}/{r.wanted} done"
            + (f", {r.failed} failed" if r.failed else "")
            + (f" ({r.done - r.exact} with other settings)" if r.exact < r.done else "")
        )


@bench.command()
def show(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"{WHAT}; by default everything measured")] = "",
    results: Results = Path("results"),
    as_json: Json = False,
) -> None:
    """Reported against measured, over the seeds that are there."""
    from calibrant.bench.store import Store
    from calibrant.bench.tables import lines

    cells = list(Store(results).cells(what))
    if not cells:
        _known(what)
        raise InputError(
            f"no cells under {results / what}; measure some with `calibrant bench run {what or 'PAPER'}`, "
            "or pass their folder with --results"
        )
    if as_json:
        _json({"lines": [asdict(line) for line in lines(cells)]})
    else:
        _lines(cells)


@bench.command()
def compare(
    a: Annotated[str, typer.Argument(help="PAPER/TABLE/ROW")],
    b: Annotated[str, typer.Argument(help="PAPER/TABLE/ROW")],
    results: Results = Path("results"),
    scale: ScaleOption = "paper",
    as_json: Json = False,
) -> None:
    """B − A, paired by seed."""
    from calibrant.bench.store import Store
    from calibrant.bench.tables import differences
    from calibrant.report.cells import metric_of
    from calibrant.report.comparison import signed

    store = Store(results)
    found = [[c for c in store.cells(name) if c.scale == _scale(scale)] for name in (a, b)]
    rows = differences(*found)
    if not rows:
        raise InputError(f"{a} and {b} have no seed in common at scale {scale!r} under {results}")
    if as_json:
        _json({"differences": [asdict(r) for r in rows]})
        return
    say(f"{b} − {a}")
    wide, metric = (max(len(getattr(r, of)) for r in rows) for of in ("variant", "metric"))
    for r in rows:
        unit = metric_of(r.metric)
        error = "" if r.error is None else f" ± {signed(unit, r.error)[1:]} (standard error)"
        say(
            f"{r.variant:<{wide}} {r.metric:<{metric}} {signed(unit, r.mean)}{error}, {r.seeds} seed(s)"
            + (f", {r.settings}" if r.settings else "")
        )


def _lines(cells: list[Any]) -> None:
    from calibrant.bench.tables import lines
    from calibrant.report import numbers
    from calibrant.report.cells import metric_of
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


def _known(what: str) -> None:
    """Raises for a name that no paper has: there is nothing to measure under it."""
    from calibrant.papers import experiments

    if what:
        experiments(what)


def _seeds(asked: int | None, scale: str) -> int | None:
    """Smoke shows that a row runs, and one seed is enough for that; None means as many as the paper ran."""
    return asked or (1 if scale == "smoke" else None)


def _scale(text: str) -> Literal["smoke", "small", "paper"]:
    known: tuple[Literal["smoke", "small", "paper"], ...] = ("smoke", "small", "paper")
    for scale in known:
        if text == scale:
            return scale
    raise InputError(f"unknown scale {text!r}; use smoke, small or paper")


def _json(content: dict[str, Any]) -> None:
    block_json({"schema": SCHEMA, **content})
