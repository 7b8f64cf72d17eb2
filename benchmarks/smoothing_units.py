"""The units of `smoothing_runs`: which trainings the rows of SS are, in order of value, and what each should take.

Rows of several tables that are one network (Table B.1's `none`, Fig. B.2's `none`, Table E.1's MC dropout, …) are one
unit. Guesses of time are those of the run folder's own finished units, where there are some.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.workers import Foldered, begun, squeezed
from calibrant.bench.store import Store
from calibrant.files.paths import visible
from calibrant.papers import Experiment, experiments
from calibrant.papers.experiment import scale_of
from calibrant.training.recipe import Recipe, digest
from calibrant.training.settings import Choice, setting

FAST = ("engine=graph", "precision=bfloat16")
VARIANTS = ("", "_smooth", "_dropout", "_dropout_smooth")
STUDIES = (
    "table_b1", "table_b2", "figure_b2", "figure_f1", "figure_b1", "figure_a1", "table_c1", "table_c2", "section_c3",
)  # fmt: skip
SPEED = {"vgg16": 60_000, "resnet50": 12_000, "resnext50": 9_000}  # images/s of a captured bf16 step alone, else:
USUAL_SPEED = 42_600
SHARED = 1.5
"""How much more several processes get out of the GPU together than one alone: a guess, until a training has ended."""
TRAIN_ITEMS, SMOKE_ITEMS = 45_000, 1_000
MEASURING = {False: 12.0, True: 40.0}  # seconds, without and with MC dropout, until a unit has been measured
CORRUPTING = 0.5
"""Share of that which the corruptions take."""


@dataclass(frozen=True)
class Unit(Foldered):
    """One training, what is measured of it, and the rows of the paper that it is."""

    rows: tuple[Experiment, ...]
    seed: int
    recipe: Recipe
    a: argparse.Namespace
    prefix = "ss"

    @property
    def name(self) -> str:
        more = f" (+ {len(self.rows) - 1})" if len(self.rows) > 1 else ""
        return f"{self.rows[0].name.removeprefix('ss/')} seed {self.seed}{more}"

    @property
    def scale(self) -> str:
        return "smoke" if self.a.smoke else scale_of(self.recipe, self.rows[0].recipe)

    @property
    def drop(self) -> bool:
        return self.rows[0].ensemble is not None

    @property
    def where(self) -> tuple[str, ...] | None:
        """The dropouts that are sampled, where that is not all of them."""
        ensemble = self.rows[0].ensemble
        return None if ensemble is None else ensemble.options.get("where")

    @property
    def shifts(self) -> int:
        """Items that are corrupted: of Table E.1's networks, whose Fig. 9 this is."""
        return self.a.shift_items if any(e.table == "table_e1" for e in self.rows) else 0

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What decides the cell's numbers."""
        recipe = self.recipe.content()
        asked = {"members": self.a.members if self.drop else 1, "items": self.a.items, "shift_items": self.shifts}
        asked |= {} if self.where is None else {"where": list(self.where)}
        return {"recipe": recipe, **asked, "shifts": self.a.shifts, "severities": list(self.a.severities)}

    def record(self) -> dict[str, Any]:
        path = self.folder / "measured.json"
        return json.loads(path.read_text("utf-8")) if path.is_file() else {}

    def done(self) -> bool:
        found = self.record()
        if found.get("key") == digest(self.settings) and found["complete"]:
            return True
        return not self.a.smoke and Store(self.a.results).path(digest(self.settings)).is_file()

    def seconds(self) -> float:
        known = speeds(self.a.runs)
        alone = SPEED.get(self.recipe.network.name, USUAL_SPEED)
        usual = alone if self.a.parallel == 1 else alone * SHARED / self.a.parallel
        speed = known.get(self.recipe.network.name, usual)
        measuring = known.get(f"measuring {self.drop} {bool(self.shifts)}")
        if measuring is None:
            measuring = MEASURING[self.drop] * (1 if self.shifts else 1 - CORRUPTING)
        left = 0 if (self.folder / "metrics.json").is_file() else self.recipe.epochs - begun(self.folder)
        return left * (SMOKE_ITEMS if self.a.smoke else TRAIN_ITEMS) / speed + measuring + (8 if left else 2)


def speeds(runs: Path) -> dict[str, float]:
    """Network → images per second of trainings that ended, `measuring …` → seconds; medians."""
    found: dict[str, list[float]] = {}
    for path in visible(runs, "ss-*/metrics.json"):
        network = json.loads((path.parent / "recipe.json").read_text("utf-8"))["network"]
        name = network if isinstance(network, str) else network["name"]
        found.setdefault(name, []).append(json.loads(path.read_text("utf-8"))["images_per_second"])
        if (path.parent / "measured.json").is_file():
            said = json.loads((path.parent / "measured.json").read_text("utf-8"))
            found.setdefault(f"measuring {said['drop']} {bool(said['shifts'])}", []).append(said["seconds"])
    return {name: median(values) for name, values in found.items()}


def plan(a: argparse.Namespace) -> list[Unit]:
    """Every unit in order of value."""
    wanted: list[tuple[Experiment, int]] = []
    if a.only:
        asked = [member for pattern in a.only for e in experiments(pattern) for member in _members(e)]
        wanted = [(e, s) for s in a.seeds for e in asked if s == a.seeds[0] or e.seeds > 1]
    else:
        for data in a.data:
            rows = [experiments(f"ss/table_e1/{data}_resnet18{variant}")[0] for variant in VARIANTS]
            wanted += [(e, s) for s in a.seeds for e in rows]
        studies = [e for table in STUDIES for e in experiments(f"ss/{table}")] if a.studies else []
        studies.sort(key=lambda e: "vgg" in e.row and e.table != "figure_f1")  # else ResNet-18 first
        rows = [experiments(f"ss/table_e1/cifar100_vgg16{variant}")[0] for variant in VARIANTS] if a.studies else []
        wanted += [(e, a.seeds[0]) for e in (*studies, *rows)]
    units: dict[str, Unit] = {}
    for e, seed in wanted:
        original = tiny(e) if a.smoke else e
        epochs = a.epochs if e.seeds > 1 and "vgg" not in e.row else a.study_epochs or a.epochs
        recipe = replace(squeezed(original.recipe, epochs, a.batch), seed=seed)
        recipe = recipe.with_settings(dict(setting(s) for s in a.set))
        had = units.get(recipe.key())
        units[recipe.key()] = Unit((*(had.rows if had else ()), original), seed, recipe, a)
    return list(units.values())


def _members(e: Experiment) -> list[Experiment]:
    """A deep ensemble is the networks of Table E.1's seeds; CamVid has a script of its own."""
    if e.recipe.data.name == "camvid":
        return []
    return experiments(f"ss/table_e1/{e.row.removesuffix('_deep')}") if e.table == "figure_e1" else [e]


def tiny(experiment: Experiment) -> Experiment:
    """The same row on digits with a small network, for --smoke; where places are named, with its own network."""
    options = dict(experiment.recipe.network.options)
    named = any("where" in options.get(key, {}) for key in ("smooth", "blurpool"))
    name = experiment.recipe.network.name if named or {"preact", "head"} & options.keys() else "resnet20"
    ensemble = experiment.ensemble
    options.pop("head_edge", None)  # a hundred million weights
    if not name.startswith("vgg"):
        options = {key: value for key, value in options.items() if key not in ("dropout_at", "last_pool")}
        ensemble = None if ensemble is None else Choice(ensemble.name, {"members": ensemble.options["members"]})
    changes: dict[str, Any] = {"data.name": "digits", "data.sizes": None, "network": {"name": name, **options}}
    recipe = experiment.recipe.with_settings({**changes, "batch": 64, "augment": None})
    return replace(experiment, recipe=recipe, ensemble=ensemble)
