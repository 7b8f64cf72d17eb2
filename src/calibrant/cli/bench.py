"""`calibrant bench run|status|show|compare`: measure a paper's rows, see what is done, reported against measured."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from calibrant.cli.bench_show import Json, Results, say_cells, show
from calibrant.cli.console import block_json, say
from calibrant.errors import InputError
from calibrant.types import SCHEMA

bench = typer.Typer(help="Measure the papers' tables again, one cell at a time, and compare.", no_args_is_help=True)

WHAT = "PAPER, PAPER/TABLE or PAPER/TABLE/ROW"
What = Annotated[str, typer.Argument(metavar="WHAT", help=f"{WHAT} (`calibrant list papers`)")]
Seeds = Annotated[
    int | None, typer.Option(help="seeds 0 … N−1; by default as many as in the paper (smoke: one)", min=1)
]
ScaleOption = Annotated[str, typer.Option(help="smoke, small (a tenth of the epochs) or paper")]


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
        say_cells(cells)


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


bench.command()(show)


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
