"""What a table would cost before anything runs: the trainings of the graph that `run` would go through, and their GPU
minutes at the pace of the cells in the store. Cells that ran side by side share the GPU's minutes.
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
    """One row: what is left to train, and the GPU minutes of it."""

    experiment: str
    done: int
    trainings: int
    unpaced: int  # trainings of networks like which none has been trained; their minutes are not in the others
    epochs: int
    minutes: float | None  # of its longest training
    total: float | None
    pace: str  # what the estimate is from


def plan(
    experiments: Sequence[Experiment], cells: Iterable[Cell], seeds: int | None, scale: Scale, place: Place
) -> list[Cost]:
    """The cost of each row, at the paces of `cells`; a training that several rows share counts once, for the first."""
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
        said = ", ".join(dict.fromkeys(words for _, words in found)) or "trained by others"
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
                said,
            )
        )
    return out


def wall(costs: Sequence[Cost], gpus: int) -> float:
    """Minutes on so many GPUs: a training is not split, and what has no pace is not in it."""
    longest = [c.minutes or 0.0 for c in costs if c.trainings]
    return max([sum(c.total or 0.0 for c in costs) / gpus, *longest], default=0.0)
