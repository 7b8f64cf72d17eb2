"""What `ar_runs` has to do, in order of value: trainings, the attack, what each run is measured on, and pools of runs.

A unit says whether it is done, what it needs first and how long it should take. The most telling come first: the five
vanilla runs and their levels, three seeds of every single-model method (AR Tables 3 and 5), AR-AdaLS of Ensemble, then
one seed of AR Fig. 5, of levels on the fly and of CCAT, and their further seeds.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.workers import begun
from calibrant.data import Data
from calibrant.papers import experiments
from calibrant.papers.ar import FIGURE5, MEMBERS, TABLE3
from calibrant.shifts import SEVERITIES, SUBSETS
from calibrant.training import distances
from calibrant.training.recipe import Recipe, digest
from calibrant.training.recipes import RECIPES
from calibrant.training.settings import Choice, setting
from calibrant.types import Split

VANILLA = "vanilla"
SINGLE = ("ar_adals", "smoothing", "adals", "mixup")
LEVELS = ("levels_4", "levels_16", "levels_1")
OF_ENSEMBLE, ON_THE_FLY, CCAT = "ar_adals_of_ensemble", "ar_adals_on_the_fly", "ccat"
ATTACKED = (Split.TRAIN, Split.VALIDATION, Split.TEST)
POOL = 3
"""Runs of a pool: all methods have as many, so that pools are compared like with like."""

TRAININGS: tuple[tuple[str, int], ...] = (
    *((VANILLA, s) for s in (0, 1, 2)),  # the levels of the first are measured while the others go on
    ("smoothing", 0), ("ar_adals", 0), ("adals", 0), ("mixup", 0),
    (VANILLA, 3), *((m, 1) for m in SINGLE), (VANILLA, 4), *((m, 2) for m in SINGLE),
    (OF_ENSEMBLE, 0), *((m, 0) for m in LEVELS), (ON_THE_FLY, 0), (CCAT, 0),
    *((m, s) for s in (1, 2) for m in (*LEVELS, ON_THE_FLY, OF_ENSEMBLE)),
    *((m, s) for s in (3, 4) for m in SINGLE), (CCAT, 1), (CCAT, 2),
)  # fmt: skip
"""(method, seed) in order of value."""

SPEED = 60_000  # images per second of all processes together, until a training has been timed
DDN_SPEED = 1_000  # items per second, likewise; 1,400 alone on an H200 before linear candidates were searched too
START = 6  # seconds from taking a training to its first step, and for its predictions
MEASURING = 20  # seconds of the measurements of a run, generously

SETTINGS: dict[str, Any] = {  # a stand-in that runs everything on a CPU
    "data": {"name": "digits", "sizes": {"train": 300, "validation": 300, "calibration": 200, "test": 400}},
    "network": {"name": "mlp", "hidden": [64], "batch_norm": False},
    "augment": None,
    "batch": 64,
    "optimiser.lr": 1e-2,
    "channels_last": False,
}
SMOKE_LEVELS, SMOKE_MEMBERS, SMOKE_SEEDS = 5, 2, 2


@dataclass(frozen=True)
class Unit:
    """One thing to do: `train`, `attack`, `measure` or `pool`."""

    what: str
    method: str
    seed: int
    recipe: Recipe
    runs: Path
    record: str = ""  # the file that a measurement leaves
    pooled: tuple[Path, ...] = ()  # the runs of a pool

    @property
    def name(self) -> str:
        return f"{self.what} {self.method} " + (f"of {len(self.pooled)}" if self.pooled else f"{self.seed}")

    @property
    def run(self) -> Path:
        return self.runs / f"{self.method}-{self.seed}-{self.recipe.key()[:8]}"

    @property
    def path(self) -> Path:
        """Where a measurement or a pool leaves its numbers."""
        if self.what == "measure":
            return self.run / self.record
        members = digest([p.name for p in self.pooled])[:8]
        return self.runs / "pools" / f"{self.method}-{len(self.pooled)}-{members}-{self.record}"

    def done(self) -> bool:
        if self.what == "train":
            return (self.run / "metrics.json").is_file()
        if self.what == "attack":
            return all(p.is_file() for p in self.files())
        return self.path.is_file()

    def files(self) -> list[Path]:
        return [self.run / distances.FOLDER / "ddn" / f"{s.value}.safetensors" for s in ATTACKED]

    def needs(self, units: Sequence[Unit]) -> list[Unit]:
        """What must be there before: the network, for AR-AdaLS its levels, for a pool the logits of its runs."""
        if self.what in ("attack", "measure"):
            return [u for u in units if (u.what, u.run) == ("train", self.run)]
        if self.what == "pool":
            return [u for u in units if u.what == "measure" and u.run in self.pooled]
        return [u for u in units if u.what == "attack"] if self.recipe.targets.name == "ar_adals" else []

    def seconds(self, data: Data, pace: Pace) -> float:
        """How long it should take, from where it stands."""
        if self.what == "attack":
            return sum(data[s].n for s in ATTACKED) / pace.ddn
        if self.what != "train":
            return float(MEASURING)
        trained = begun(self.run)
        images = data[Split.TRAIN].n * (self.recipe.epochs - trained) * self.recipe.members
        attacked = sum(e > trained for e in refreshes(self.recipe)) * refresh_seconds(data, pace)
        return float(START + images * cost(self.recipe) / pace.images + attacked)


@dataclass(frozen=True)
class Pace:
    """Items per second of one process while the others work too: measured, else a guess."""

    images: float
    ddn: float


def pace(units: Sequence[Unit], parallel: int) -> Pace:
    trained, attacked = [], []
    for unit in units:
        if unit.what == "train" and unit.done() and cost(unit.recipe) == 1 and not refreshes(unit.recipe):
            found = json.loads((unit.run / "metrics.json").read_text("utf-8"))
            trained.append(found["images_per_second"])
        elif unit.what == "attack" and unit.done():
            held = unit.run / distances.FOLDER / "pace.json"
            attacked += [json.loads(held.read_text("utf-8"))["items_per_second"]] if held.is_file() else []
    images = median(trained) if trained else SPEED / parallel
    return Pace(images, median(attacked) if attacked else DDN_SPEED / parallel)


def cost(recipe: Recipe) -> float:
    """Passes over an image, a plain training's being one."""
    attacks = [t.options["attack"]["iterations"] for t in recipe.transforms if t.name == "ccat"]
    return 1.0 + sum(float(steps + 2) / 2 for steps in attacks)  # half of a batch is attacked


def refreshes(recipe: Recipe) -> tuple[int, ...]:
    """After which epochs the network in training is attacked."""
    return tuple(recipe.targets.options.get("refresh_after", ()))


def refresh_seconds(data: Data, pace: Pace) -> float:
    return (data[Split.TRAIN].n + data[Split.VALIDATION].n) / pace.ddn


def recipe_of(method: str, seed: int, a: argparse.Namespace) -> Recipe:
    """The paper's recipe, squeezed as asked."""
    recipe = experiments(name_of(method))[0].recipe
    if a.smoke:
        recipe = recipe.with_settings(SETTINGS)
    changes: dict[str, Any] = dict(setting(s) for s in a.set)
    if a.batch is not None and a.batch != recipe.batch:
        changes |= {"batch": a.batch, "optimiser.lr": recipe.optimiser.lr * math.sqrt(a.batch / recipe.batch)}
    if a.epochs is not None and a.epochs != recipe.epochs:
        alpha = recipe.targets.options.get("alpha")
        if alpha is not None:  # as far as the paper's epochs would take it
            changes["targets.alpha"] = alpha * recipe.epochs / a.epochs
        recipe = recipe.scaled(a.epochs)
    if a.smoke and method.startswith("ar_adals"):
        changes["targets.levels"] = SMOKE_LEVELS
    if recipe.members > 1:
        changes["members"] = SMOKE_MEMBERS if a.smoke else a.members
    if a.pgd is not None and method == CCAT:
        (ccat,) = recipe.transforms
        attack = {**ccat.options["attack"], "iterations": a.pgd}
        recipe = replace(recipe, transforms=(Choice("ccat", {**ccat.options, "attack": attack}),))
    return replace(recipe.with_settings(changes), seed=seed)


def name_of(method: str) -> str:
    """The experiment that a method's runs are filed under."""
    return f"ar/figure5/{method}" if method.startswith("levels_") else f"ar/table3/{method}"


def schedule_note(a: argparse.Namespace, method: str = VANILLA) -> str:
    """What a cell says about its schedule; empty for the paper's own."""
    paper = RECIPES["ar/cifar10_resnet29"]
    changed = []
    if a.epochs not in (None, paper.epochs):
        changed.append(
            f"{a.epochs} epochs instead of {paper.epochs} (milestones scaled, α × {paper.epochs / a.epochs:.3g})"
        )
    if a.batch not in (None, paper.batch):
        changed.append(f"batch {a.batch} instead of {paper.batch} (rate × {math.sqrt(a.batch / paper.batch):.3g})")
    if a.smoke:
        changed.append("digits and an MLP instead of CIFAR-10 and ResNet-29")
    if method == OF_ENSEMBLE and a.members != MEMBERS:
        changed.append(f"{a.members} members instead of {MEMBERS}")
    if method == CCAT and a.pgd is not None:
        changed.append(f"PGD of {a.pgd} steps instead of 10")
    return f"NOT the paper's schedule: {'; '.join(changed)}" if changed else ""


def sets(a: argparse.Namespace) -> list[tuple[str, str, int]]:
    """(name, corruption, severity) of every corrupted set that is asked for."""
    if not a.corruptions:
        return []
    every = [(f"{name}-{s}", name, s) for s in range(1, SEVERITIES + 1) for name in SUBSETS["19"]]
    return [line for line in every if a.shifts is None or line[0] in a.shifts]


def plan(a: argparse.Namespace) -> list[Unit]:
    runs = a.runs / ("smoke" if a.smoke else "ar")
    known = {m for m in TABLE3 if not m.startswith("ensemble_of_")} | {f"levels_{r}" for r in FIGURE5}
    wanted = [(m, s) for m, s in TRAININGS if s < a.seeds or (m == VANILLA and not a.smoke)]
    if a.only is not None:  # AR-AdaLS needs the first vanilla run and its levels
        levels = any(m.startswith(("ar_adals", "levels_")) for m in a.only)
        asked = [line for line in wanted if line[0] in a.only or f"{line[0]}:{line[1]}" in a.only]
        wanted = [*([(VANILLA, 0)] if levels and (VANILLA, 0) not in asked else []), *asked]
    record = f"measured-{a.shift_items or 'all'}-{len(sets(a))}.json"
    return list(_lines([line for line in wanted if line[0] in known], runs, record, a))


def _lines(wanted: Sequence[tuple[str, int]], runs: Path, record: str, a: argparse.Namespace) -> Iterator[Unit]:
    """Each training, then at once what it is measured on, and the pools that it completes."""
    trained: dict[str, list[Unit]] = {}
    for method, seed in wanted:
        unit = Unit("train", method, seed, recipe_of(method, seed, a), runs)
        yield unit
        if (method, seed) == (VANILLA, 0):
            yield replace(unit, what="attack")
        yield replace(unit, what="measure", record=record)
        held = trained.setdefault(method, [])
        held.append(unit)
        if f"ensemble_of_{method}" in TABLE3 and len(held) in sizes(a):
            yield replace(held[0], what="pool", record=record, pooled=tuple(u.run for u in held))


def sizes(a: argparse.Namespace) -> tuple[int, ...]:
    """How many runs are pooled: as many as all methods have, and as many as the paper's."""
    return (SMOKE_SEEDS,) if a.smoke else (POOL, MEMBERS)
