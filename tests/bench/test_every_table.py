"""Every table of every paper runs at smoke scale: each kind of row once, on stand-ins for its data and network.

These tests run the steps, from training to the cell. Other tests build the papers' own networks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from calibrant.bench import Cell, shifted, video
from calibrant.bench.place import Place
from calibrant.bench.reproduction import entries_of
from calibrant.bench.run import run
from calibrant.bench.shifted import Shifts
from calibrant.bench.tables import lines
from calibrant.executors import InProcess
from calibrant.papers import AS_TRAINED, PAPERS, Experiment
from calibrant.papers.reported import TABLES
from calibrant.training import How
from tests.bench.stand_ins import factory, publish, stand_in
from tests.hurried import few_replicates

EXPERIMENTS = [e for paper in PAPERS.values() for e in paper.experiments]
NAMES = list(dict.fromkeys(f"{e.paper}/{e.table}" for e in EXPERIMENTS))
UNDEFINED = {"auroc", "success_rate"}
"""Metrics without a value if a barely trained network gets nothing right."""


def kinds(table: str) -> Iterator[Experiment]:
    """The first row of each kind. The kind is how the network is trained and what is measured of it.

    Only the first row with given ensembles and calibrators has shifted data: another loss changes no step after the
    training.
    """
    seen, asked = set(), set()
    for e in (e for e in EXPERIMENTS if f"{e.paper}/{e.table}" == table):
        made, recipe = stand_in(e), e.recipe
        trained = (recipe.loss, recipe.targets, *recipe.penalties, *recipe.transforms)
        names = tuple(c.name for c in (*trained, *made.ensembles))
        more = (recipe.members, recipe.selection is None, made.recipe.data.name, made.reference is None)
        kind = (names, tuple(made.maps), made.shifts, made.pool, *more)
        if kind not in seen:
            seen.add(kind)
            about = (tuple(c.name for c in made.ensembles), tuple(made.maps), made.shifts, made.pool, recipe.members)
            yield replace(made, shifts=(), reference=None) if about in asked else made
            asked.add(about)


def variants(e: Experiment) -> set[str]:
    """The variants that a cell of the experiment must have."""
    asked, predictors = Shifts.of(e.shifts), ["", *(c.name for c in e.ensembles)]
    if e.block is not None:
        return {AS_TRAINED, "temporal", *predictors[1:]}
    sets = ["", *asked.datasets, *(n.removeprefix("ood:") for n in asked.suites if n.startswith("ood:"))]
    if "corruptions" in asked.suites:
        sets += ["corruptions", "corruptions_15", *(f"intensity_{s}" for s in range(1, 6))]
    if asked.levels:
        sets += [f"level_{number}" for number in range(10)]
    unmapped = [n for n in asked.suites if n == "perturbations"] + [f"attack_{name}" for name in asked.attacks]
    every = [(s, p, c) for s in sets for p in predictors for c in ("", *e.maps)]
    every += [(s, p, "") for s in unmapped for p in predictors]
    return {"+".join(filter(None, words)) or AS_TRAINED for words in every}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that all tables share, so that they share trainings; intervals have few replicates to save time."""
    few = replace(shifted.RESAMPLING, replicates=40)
    with pytest.MonkeyPatch.context() as monkeypatch:
        few_replicates(monkeypatch)
        for module in (shifted, video):
            monkeypatch.setattr(module, "RESAMPLING", few)
        yield tmp_path_factory.mktemp("every_table")


@pytest.mark.parametrize("table", NAMES)
def test_a_table_runs_at_smoke_scale_and_stands_beside_no_number_of_the_paper(table: str, folder: Path) -> None:
    cells: list[Cell] = []
    for made_by, group in groupby(sorted(kinds(table), key=factory), factory):
        rows, how = list(group), How(device="cpu", root=folder / "data", quiet=True, factory=made_by or None)
        for row in rows:
            publish(row, folder / "data")
        found = run(rows, [0], "smoke", Place(folder / "results", folder / "runs", how), InProcess())
        assert not found.open, [(o.step.name, o.why) for o in found.open]
        for row, cell in zip(rows, found.cells, strict=True):
            complete(row, cell)
        cells += found.cells
    assert all(line.reported is None for line in lines(cells))
    for reported in (t for t in TABLES.values() if {r.experiment for r in t.rows} & {c.experiment for c in cells}):
        assert all(entry.group is None and entry.measured is None for entry in entries_of(reported, cells))


def complete(row: Experiment, cell: Cell) -> None:
    """Check that a cell has all variants and metrics, its scale, and a note that names the stand-ins."""
    data = f"{row.recipe.data.name} instead of {row.paper_recipe.data.name}"
    assert (cell.status, cell.scale) == ("done", "smoke") and data in cell.note.split(";")[0]
    assert variants(row) <= set(cell.measured)
    assert set(row.metrics) <= set(cell.measured[AS_TRAINED])
    for variant, metrics in cell.measured.items():
        assert metrics, variant
        for metric, value in metrics.items():
            assert metric in UNDEFINED if value is None else math.isfinite(value), (variant, metric, value)
