"""Measure one cell in this process."""

from __future__ import annotations

from pathlib import Path

from calibrant.bench import Cell, Store
from calibrant.bench.place import Place
from calibrant.bench.run import run
from calibrant.executors import InProcess
from calibrant.papers import Experiment, Scale
from calibrant.training import How

QUIET = How(device="cpu", quiet=True)


def measure(experiment: Experiment, seed: int, scale: Scale, store: Store, runs: Path, how: How = QUIET) -> Cell:
    """The cell; the error of a failed step is raised."""
    made = run([experiment], [seed], scale, Place(store.root, runs, how), InProcess())
    for outcome in made.open:
        if outcome.error is not None:
            raise outcome.error
    return made.cells[0]
