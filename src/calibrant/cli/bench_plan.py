"""`calibrant bench plan`: what a paper, a table or a row would cost, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from calibrant.cli.console import block_json, say
from calibrant.types import SCHEMA

if TYPE_CHECKING:
    from calibrant.bench.place import Place
    from calibrant.bench.plan import Cost
    from calibrant.papers import Experiment


def print_plan(asked: Sequence[Experiment], seeds: int | None, scale: str | int, place: Place, as_json: bool) -> None:
    """Trainings and GPU minutes of every row that is not measured, from the paces of the store."""
    from calibrant.bench.plan import plan
    from calibrant.cli.bench_show import readable

    with readable(place.results) as store:
        _print(plan(asked, store.cells(), seeds, scale, place), as_json)


def _print(costs: Sequence[Cost], as_json: bool) -> None:
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
