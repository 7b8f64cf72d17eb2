"""`calibrant bench`: measure the rows of the papers' tables, see what is done, compare rows and move results."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.bench_move import merge, pack, unpack
from calibrant.cli.bench_show import Results, readable, report, say_cells, say_plan, show
from calibrant.cli.console import block_json, say
from calibrant.cli.options import DataRoot, Device, Json
from calibrant.errors import FailedError, InputError
from calibrant.types import SCHEMA

if TYPE_CHECKING:
    from calibrant.bench.store import Cell
    from calibrant.executors import Outcome

bench = typer.Typer(help="Measure the papers' tables again, and compare with what they report.", no_args_is_help=True)

WHAT = "PAPER, PAPER/TABLE or PAPER/TABLE/ROW"
Seeds = Annotated[
    int | None, typer.Option(help="use seeds 0 … N−1; by default as many as in the paper (smoke: one)", min=1)
]
ScaleOption = Annotated[
    str | None, typer.Option(help="smoke (does it run?), small (a tenth of the epochs) or paper", show_default="paper")
]
ShownScale = Annotated[str | None, typer.Option(help="smoke, small or paper", show_default="every scale")]
What = Annotated[list[str], typer.Argument(metavar="WHAT…", help=f"{WHAT} (`calibrant list papers`)")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="change a setting of the recipe: key=value; repeatable")
]
Runs = Annotated[Path, typer.Option(help="folder of the trainings; unfinished ones are resumed")]
Epochs = Annotated[int | None, typer.Option(help="run the schedule over this many epochs, instead of --scale", min=1)]


@bench.command()
def run(
    what: What,
    seeds: Seeds = None,
    scale: ScaleOption = None,
    epochs: Epochs = None,
    results: Results = Path("results"),
    runs: Runs = Path("runs"),
    settings: Settings = None,
    data_root: DataRoot = None,
    device: Device = "auto",
    parallel: Annotated[int, typer.Option(help="run this many processes side by side", min=1)] = 1,
    ray: Annotated[
        str | None,
        typer.Option(help="run on a Ray cluster: its address, or local; each GPU runs --parallel steps at a time"),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="start only what should end in this time, or needs more than all of it, and stop trainings at the end "
            "of an epoch (one whose pace is unknown trains at least one epoch); the same command goes on later",
            min=0.01,
        ),
    ] = None,
    keep_epochs: Annotated[
        bool, typer.Option(help="keep what the network predicts of the training items after every epoch")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure every cell that is not in the store."""
    from calibrant.bench.place import Place
    from calibrant.bench.progress import Reporting
    from calibrant.bench.run import run as run_steps
    from calibrant.training.run import How
    from calibrant.training.settings import setting, typed

    start, size = time.time(), _scale(scale, epochs) or "paper"
    overrides = dict(setting(s) for s in settings or ())
    asked, count = _asked(what, overrides), _seeds(seeds, size)
    _check_places(results, runs)
    bar = parallel == 1 and ray is None and sys.stderr.isatty()  # of a training
    factory = typed(overrides, "data.name")
    how = How(device, root=data_root, quiet=not bar, factory=factory, keep_epochs=keep_epochs)
    words = ["calibrant bench run", *what, "--epochs" if epochs else "--scale", f"{size}"]
    command = " ".join([*words, *(f"--set {s}" for s in settings or ())])
    report = Reporting(_pool(parallel, device, ray), partial(say, err=True))
    made = run_steps(
        asked,
        None if count is None else range(count),
        size,
        Place(results.absolute(), runs.absolute(), how, command, parallel),
        report,
        None if minutes is None else start + 60 * minutes,
        0.0 if minutes is None else min(RESERVE, 20 * minutes),
        report.ended,
    )
    if as_json:
        _json({"cells": [c.to_dict() for c in made.cells]})
    else:
        say_cells(list(made.cells))
    _say_open(made.open)


def _check_places(results: Path, runs: Path) -> None:
    from calibrant.files.outputs import check_place

    check_place(results, "keep the cells in with --results")
    check_place(runs, "keep the trainings in with --runs")


def _say_open(steps: Sequence[Outcome]) -> None:
    """Report the steps that are not done. A failed step is an error; one that had no time is not."""
    failed = [o for o in steps if o.ending == "failed"]
    if failed:
        more = f" (and {len(failed) - 1} more steps failed)" if len(failed) > 1 else ""
        raise FailedError(f"{failed[0].step.name} failed: {failed[0].why}{more}")
    if steps:
        say(f"{len(steps)} steps are still to be done; the same command goes on with them", err=True)


RESERVE = 40.0
"""The last seconds of --minutes, in which nothing is trained, but trained networks are measured."""


def _pool(parallel: int, device: str, ray: str | None) -> Any:
    """The executor. With a GPU, further processes that do not use it measure what has been trained."""
    from calibrant.executors import InProcess, LocalProcesses
    from calibrant.executors.cluster import RayCluster

    if ray is not None:
        return RayCluster(ray, parallel)
    if parallel == 1:
        return InProcess()
    import torch

    gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    cpu_only = min(parallel, max(1, (os.cpu_count() or 2) // 4)) if gpu else 0
    return LocalProcesses(parallel, cpu_only, cuda=gpu)


@bench.command()
def status(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"{WHAT}; by default every paper")] = "",
    seeds: Seeds = None,
    scale: ShownScale = None,
    epochs: Epochs = None,
    results: Results = Path("results"),
    as_json: Json = False,
) -> None:
    """Show how many seeds of each row are measured, at every scale that has cells."""
    from calibrant.bench.tables import row_statuses
    from calibrant.papers import PAPERS, experiments

    wanted = [e for name in ([what] if what else PAPERS) for e in experiments(name)]
    with readable(results) as store:
        rows = row_statuses(wanted, store.existing(), seeds, _scale(scale, epochs))
        if as_json:
            _json({"rows": [asdict(r) for r in rows]})
            return
        wide, name = max(len(r.experiment) for r in rows), max(len(r.scale) for r in rows)
        for r in rows:
            say(
                f"{r.experiment:<{wide}} {r.scale:<{name}} {r.exact}/{r.wanted} done"
                + (f", {r.done - r.exact} at other settings" if r.done > r.exact else "")
                + (f", {r.failed} failed" if r.failed else "")
                + (f", {r.stale} stale: made by an earlier edition of a step" if r.stale else "")
                + (f" ({r.settings})" if r.settings else "")
            )


bench.command()(show)
bench.command()(report)


@bench.command("plan")
def cost(
    what: What,
    seeds: Seeds = None,
    scale: ScaleOption = None,
    epochs: Epochs = None,
    results: Results = Path("results"),
    runs: Runs = Path("runs"),
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Show what is left to train of each row, and the GPU minutes that takes at the paces measured so far."""
    from calibrant.bench.place import Place
    from calibrant.training.settings import setting

    size = _scale(scale, epochs) or "paper"
    asked = _asked(what, dict(setting(s) for s in settings or ()))
    say_plan(asked, _seeds(seeds, size), size, Place(results, runs), as_json)


@bench.command()
def compare(
    a: Annotated[str, typer.Argument(help="PAPER/TABLE/ROW")],
    b: Annotated[str, typer.Argument(help="PAPER/TABLE/ROW")],
    results: Results = Path("results"),
    scale: ShownScale = None,
    epochs: Epochs = None,
    as_json: Json = False,
) -> None:
    """Show the differences B − A, paired by seed."""
    from calibrant.papers import experiments

    asked = _scale(scale, epochs)
    rows = {name: experiments(name)[0] for name in (a, b)}
    scales = {name: row.scale_name(asked) for name, row in rows.items() if asked is not None}
    with readable(results) as store:
        cells = [c for n in (a, b) for c in store.cells(n) if c.scale == scales.get(n, c.scale)]
        _compare(a, b, cells, f"{f' at scale {asked}' if asked else ''} under {results}", as_json)


def _compare(a: str, b: str, cells: list[Cell], where: str, as_json: bool) -> None:
    from calibrant.bench.tables import compared
    from calibrant.report.comparison import signed
    from calibrant.report.numbers import metric_of

    rows = compared(a.strip("/"), b.strip("/"), cells)
    if not rows:
        raise InputError(f"{a} and {b} have no seed in common{where}")
    if as_json:
        _json({"differences": [asdict(r) for r in rows]})
        return
    say(f"{b} − {a}")
    wide, metric = (max(len(getattr(r, of)) for r in rows) for of in ("variant", "metric"))
    for r in rows:
        unit = metric_of(r.metric)
        error = "" if r.error is None else f" ± {signed(unit, r.error)[1:]} (standard error)"
        say(
            f"{r.variant:<{wide}} {r.metric:<{metric}} {signed(unit, r.mean)}{error}, {r.seeds} seed(s), {r.scale}"
            + (f", {r.settings}" if r.settings else "")
        )


for verb in (merge, pack, unpack):
    bench.command()(verb)


def _asked(what: Sequence[str], overrides: Mapping[str, Any]) -> list[Any]:
    """The experiments with these names, each once, with changed settings."""
    from calibrant.papers import experiments

    rows = {e.name: e for name in what for e in experiments(name)}
    return [e.changed(overrides) if overrides else e for e in rows.values()]


def _seeds(asked: int | None, scale: str | int) -> int | None:
    """How many seeds to run: one at smoke scale unless asked otherwise; None means as many as in the paper."""
    return asked or (1 if scale == "smoke" else None)


def _scale(scale: str | None, epochs: int | None) -> str | int | None:
    """The scale that --scale or --epochs asks for; None if neither is given."""
    from calibrant.papers import SCALES

    if scale is not None and epochs is not None:
        raise InputError("--scale and --epochs both say how long to train; use one of them")
    if scale is not None and scale not in SCALES:
        raise InputError(f"unknown scale {scale!r}; use smoke, small or paper, or --epochs N")
    return epochs if epochs is not None else scale


def _json(content: dict[str, Any]) -> None:
    block_json({"schema": SCHEMA, **content})
