"""Measure experiments: run their steps on an executor until the cells are in the store.

A cell that is in the store is not measured again. A killed run is resumed. A failed run is stored as a failed cell with
the reason, and tried again when it is asked for again; missing data is reported, but is not a failed run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from calibrant.bench.measure import blank
from calibrant.bench.place import Place
from calibrant.bench.shifted import check
from calibrant.bench.steps import Measure
from calibrant.bench.store import Cell, Store
from calibrant.bench.train import Train
from calibrant.errors import FileError
from calibrant.executors import Outcome, Pool, Step, execute
from calibrant.papers import Experiment, Scale


def graph(wanted_cells: Sequence[tuple[Experiment, int]], scale: Scale, place: Place) -> list[Step]:
    """The steps of these cells that are not done: each once, after the steps that it needs."""
    cells: dict[str, Measure] = {}
    for e, seed in wanted_cells:
        key = e.key(seed, scale)
        cells[key] = Measure((*cells[key].rows, e) if key in cells else (e,), seed, scale, place)
    steps: dict[str, Step] = {}
    for cell in (c for c in cells.values() if not c.done()):
        for step in (*([] if cell.measured() else cell.before), cell):
            known = steps.setdefault(step.key, step)
            if isinstance(step, Train) and isinstance(known, Train) and step.keep_weights > known.keep_weights:
                steps[step.key] = step
    return list(steps.values())


@dataclass(frozen=True)
class Result:
    """The result of a call: the cells that are in the store now, and the outcome of every step that is not done."""

    cells: tuple[Cell, ...]
    open: tuple[Outcome, ...]


def run(
    experiments: Sequence[Experiment],
    seeds: Sequence[int] | None,
    scale: Scale,
    place: Place,
    pool: Pool,
    deadline: float | None = None,
    reserve: float = 0.0,
    say: Callable[[Outcome], None] = lambda outcome: None,
) -> Result:
    """Measure every cell that is not in the store. `seeds` None means as many seeds as in the paper."""
    for e in experiments:
        check(e)
    cells = [(e, seed) for e in experiments for seed in (range(e.seeds) if seeds is None else seeds)]
    steps = graph(sorted(cells, key=lambda cell: cell[1]), scale, place)  # a seed of every row before the next seed
    left = []
    for outcome in execute(steps, pool, deadline, reserve):
        say(outcome)
        if outcome.ending != "done":
            left.append(outcome)
        if outcome.ending == "failed" and not isinstance(outcome.error, FileError):
            with suppress(OSError):  # the disk may be full; the failure was reported already
                _file_failure(outcome, [s for s in steps if isinstance(s, Measure)], place)
    store = Store(place.results, lambda error: None)  # a damaged cell was reported as a failed step
    found = [store.find(e, seed, scale) for e, seed in cells]
    return Result(tuple(c for c in found if c is not None), tuple(left))


def _file_failure(outcome: Outcome, cells: Sequence[Measure], place: Place) -> None:
    """Store every cell that needed the step as failed, with the reason."""
    words = outcome.why.replace(str(place.runs), "runs")  # results are shared; this machine's paths mean nothing there
    for cell in cells:
        if outcome.step.key in (cell.key, *cell.needs):
            for e in cell.rows:
                failed = blank(e, cell.seed, cell.scale, place.command)
                place.store.write(replace(failed, error=words, seconds=outcome.seconds))
