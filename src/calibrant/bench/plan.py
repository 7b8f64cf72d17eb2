"""What a table would cost: the trainings in the graph of steps that `run` would execute, and their GPU minutes at the
pace of the cells in the store. Cells that ran side by side share the minutes of the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calibrant.bench import pace
from calibrant.bench.place import Place
from calibrant.bench.reproduction import minutes_of
from calibrant.bench.run import graph
from calibrant.bench.steps import Measure
from calibrant.bench.store import Cell
from calibrant.bench.train import Train
from calibrant.papers import Experiment, Scale

GPUS = (1, 8, 64)


@dataclass(frozen=True)
class Cost:
    """What is left to train of one row, and how many GPU minutes that takes."""

    experiment: str
    done: int
    trainings: int
    unpaced: int  # trainings without a known pace; `total` does not include them
    epochs: int
    minutes: float | None  # of the longest training
    total: float | None
    pace: str  # where the pace comes from


def plan(
    experiments: Sequence[Experiment], cells: Iterable[Cell], seeds: int | None, scale: Scale, place: Place
) -> list[Cost]:
    """The cost of each row, at the paces of `cells`. A training that several rows share counts for the first one."""
    paces = pace.of_cells(cells, lambda cell: 60 * minutes_of(cell))
    wanted = [(e, seed) for e in experiments for seed in range(seeds or e.seeds)]
    steps = graph(wanted, scale, place)
    left = [s for s in steps if isinstance(s, Measure)]
    trainings = {s.key: s for s in steps if isinstance(s, Train) and not s.done()}
    out = []
    for e in experiments:
        rows = [m for m in left if e.name in {row.name for row in m.rows}]
        own = [trainings.pop(key) for m in rows for key in m.needs if key in trainings]
        recipes = [t.recipe for t in own] or ([] if e.published else [e.at(0, scale)])
        found = [paces.of(recipe) for recipe in recipes]
        known = [seconds / 60 for seconds, _ in found if seconds is not None]
        source = ", ".join(dict.fromkeys(words for _, words in found)) or "trained by others"
        total = sum(known) if own else 0.0
        unpaced = len(own) - len(known) if own else 0
        out.append(
            Cost(
                e.name,
                (seeds or e.seeds) - len(rows),
                len(own),
                unpaced,
                e.at(0, scale).epochs,
                max(known, default=None),
                total if known or not own else None,
                source,
            )
        )
    return out


def wall(costs: Sequence[Cost], gpus: int) -> float:
    """Minutes to wait with this many GPUs. A training is not split, and one without a pace is not counted."""
    longest = [c.minutes or 0.0 for c in costs if c.trainings]
    return max([sum(c.total or 0.0 for c in costs) / gpus, *longest], default=0.0)
