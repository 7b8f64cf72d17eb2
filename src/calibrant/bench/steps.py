"""An experiment as a graph of steps: train (after the levels that its targets need) → predict → measure.

A step's key is the content of what it makes, so what two experiments need is made once: the vanilla network of AR's
Table 3 is the one whose levels AR-AdaLS trains with. Engine, device and the number of processes are in no key.

    runs/KEY/            a training: its weights stay here, its predictions travel into the store
    runs/predict-KEY/    what an ensemble, or the network on shifted data, says
    results/             cells, made by the steps that measure
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from calibrant.attacks.store import EDITION as EDITION_OF_RULERS
from calibrant.bench import pace, video
from calibrant.bench.measure import measured, measured_again
from calibrant.bench.place import Place, Placed
from calibrant.bench.predict import RECORD, predict, wanted
from calibrant.bench.store import KEY_LENGTH, Cell
from calibrant.executors import OutOfTime, Step
from calibrant.files import hashed
from calibrant.files.paths import visible
from calibrant.papers import AS_TRAINED, Experiment, Scale
from calibrant.training import distances, levels
from calibrant.training.recipe import Recipe, digest
from calibrant.training.run import make_fabric, train
from calibrant.training.run_folder import load
from calibrant.training.selection import select
from calibrant.types import Split

EDITION = 2
"""Of what predict steps compute: another edition is another key."""
CHECKPOINT_EVERY = 5
"""Epochs between checkpoints where a training may be cut off."""


@dataclass(frozen=True)
class Train(Placed):
    """One training, or all points of a selection."""

    recipe: Recipe
    place: Place
    keep_weights: int = 0

    @property
    def key(self) -> str:
        return f"train-{self.recipe.key()[:KEY_LENGTH]}"

    @property
    def name(self) -> str:
        return f"train {self.recipe.name or self.recipe.network.name}, seed {self.recipe.seed}"

    @property
    def needs(self) -> tuple[str, ...]:
        return (Levels(self.recipe, self.place).key,) if attacked_before(self.recipe) else ()

    @property
    def folder(self) -> Path:
        return self.place.run(self.recipe)

    @property
    def record(self) -> Path:
        """What a training writes last."""
        return self.folder / ("metrics.json" if self.recipe.selection is None else "selection.json")

    def done(self) -> bool:
        """Ended, with the weights that are asked for: those of a training that nobody averaged are not there."""
        weights = self.keep_weights if self.recipe.selection is None else 0
        return self.record.is_file() and len(visible(self.folder, "epochs/weights-*.safetensors")) >= weights

    def seconds(self) -> float | None:
        return pace.seconds_left(self.recipe, self.folder, self.place.runs, self.place.store)

    def run(self, deadline: float | None) -> None:
        how = replace(self.place.how, keep_weights=max(self.place.how.keep_weights, self.keep_weights))
        if deadline is not None:
            how = replace(how, every=CHECKPOINT_EVERY, listen=_watch(deadline, self.recipe.epochs))
        if attacked_before(self.recipe):
            how = replace(how, levels=self.place.run(levels.vanilla(self.recipe)))
        data = self.place.data(self.recipe)
        if data[Split.TRAIN].y.ndim > 1:
            data = video.watched(data)
        if self.record.is_file():  # it ended without the weights: once more, from the start
            self.record.unlink()
            shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
        if self.recipe.engine not in ("eager", "graph"):
            torch.compiler.reset()  # a process that stays would reach torch's limit of recompilations, and run eagerly
        if self.recipe.selection is None:
            train(self.recipe, self.folder, how, data)
        else:
            select(self.recipe, self.folder, how, data)


def attacked_before(recipe: Recipe) -> bool:
    """Whether levels are measured on a twin; the points of a selection each have their own inside them."""
    return levels.wanted(recipe) and recipe.selection is None


def _watch(deadline: float, epochs: int) -> Any:
    """Ends a training whose next epoch would end too late."""
    ends: list[float] = []

    def listen(epoch: int, validation: object) -> None:
        ends.append(time.time())
        took = ends[-1] - ends[-2] if len(ends) > 1 else 0.0
        if ends[-1] + took > deadline and epoch < epochs:
            raise OutOfTime

    return listen


@dataclass(frozen=True)
class Levels(Placed):
    """The robustness of the training and validation items, measured on the vanilla twin of a recipe (AR §4)."""

    recipe: Recipe
    place: Place

    @property
    def twin(self) -> Recipe:
        return levels.vanilla(self.recipe)

    @property
    def ruler(self) -> str:
        return str(levels.option(self.recipe, "ruler"))

    @property
    def key(self) -> str:
        return f"levels-{self.ruler}-{EDITION_OF_RULERS}-{self.twin.key()[:KEY_LENGTH]}"

    @property
    def name(self) -> str:
        return f"levels of {self.twin.name}, seed {self.recipe.seed}"

    @property
    def needs(self) -> tuple[str, ...]:
        return (Train(self.twin, self.place).key,)

    def done(self) -> bool:
        folder = self.place.run(self.twin) / distances.FOLDER / self.ruler
        return all((folder / f"{split.value}.safetensors").is_file() for split in levels.PARTS)

    def run(self, deadline: float | None) -> None:
        run, data = self.place.run(self.twin), self.place.data(self.recipe)
        members, device = load(run).members, make_fabric(self.recipe, self.place.how).device
        for split in levels.PARTS:
            distances.measured(members, data, split, run / distances.FOLDER, ruler=self.ruler, device=device)


@dataclass(frozen=True)
class Predict(Placed):
    """What one training's networks say beyond their own test set: as ensembles, on shifted data, with features."""

    experiment: Experiment
    seed: int
    scale: Scale
    place: Place

    @property
    def recipe(self) -> Recipe:
        return self.experiment.at(self.seed, self.scale)

    @property
    def key(self) -> str:
        asked = wanted(self.experiment, self.scale)
        return f"predict-{digest([EDITION, self.recipe.key(), asked, self.seed])[:KEY_LENGTH]}"

    @property
    def name(self) -> str:
        return f"predict {self.experiment.name}, seed {self.seed}"

    @property
    def needs(self) -> tuple[str, ...]:
        return (Train(self.recipe, self.place).key,)

    @property
    def folder(self) -> Path:
        return self.place.runs / self.key

    def done(self) -> bool:
        return (self.folder / RECORD).is_file()

    def run(self, deadline: float | None) -> None:
        how = self.place.how
        device, data = make_fabric(self.recipe, how).device, self.place.data(self.recipe)
        predict(
            self.experiment, self.seed, self.scale, self.place.run(self.recipe), self.folder, device, data, how.root
        )


@dataclass(frozen=True)
class Measure(Placed):
    """Calibrators, metrics and intervals from the predictions: a cell, for every row that it is."""

    rows: tuple[Experiment, ...]
    seed: int
    scale: Scale
    place: Place
    gpu: ClassVar[bool] = False

    @property
    def experiment(self) -> Experiment:
        return self.rows[0]

    @property
    def key(self) -> str:
        return f"measure-{self.experiment.key(self.seed, self.scale)[:KEY_LENGTH]}"

    @property
    def name(self) -> str:
        more = f" (and {len(self.rows) - 1} more rows)" if len(self.rows) > 1 else ""
        return f"{self.experiment.name}{more}, seed {self.seed}, {self.experiment.scale_name(self.scale)}"

    @property
    def recipes(self) -> list[Recipe]:
        """Of the trainings that the cell is of: one, or those of a pool."""
        return [self.experiment.at(seed, self.scale) for seed in self.experiment.seeds_of(self.seed, self.scale)]

    @property
    def predicted(self) -> list[Predict]:
        """One for each training; none where its own predictions are enough."""
        alone = self.experiment.alone()
        if not any(wanted(alone, self.scale).values()):
            return []
        return [Predict(alone, s, self.scale, self.place) for s in self.experiment.seeds_of(self.seed, self.scale)]

    @property
    def reference(self) -> Predict | None:
        found = self.experiment.of_reference()
        return None if found is None else Predict(found, self.seed, self.scale, self.place)

    @property
    def known(self) -> Cell | None:
        """Another cell of the training, where the predictions in the store are enough."""
        (first, *more), own = self.recipes, self.experiment
        if more or self.predicted or self.reference or own.block is not None or first.selection is not None:
            return None
        return None if Train(first, self.place).done() else self.place.store.of_training(self.place.run(first).name)

    @property
    def before(self) -> list[Step]:
        """What must be there before the cell can be measured, each after what it needs."""
        if self.known is not None:
            return []
        asked = [*([self.reference] if self.reference else []), *self.predicted]
        keep = wanted(self.experiment, self.scale)["checkpoints"]
        found: list[Step] = []
        for recipe in (*([self.reference.recipe] if self.reference else []), *self.recipes):
            if attacked_before(recipe):
                attack = Levels(recipe, self.place)
                found += [Train(attack.twin, self.place), attack]
            found.append(Train(recipe, self.place, keep))
        return [*found, *asked]

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(step.key for step in self.before)

    def done(self) -> bool:
        found = self._there()
        return self.measured() and all(e.name in found["rows"] for e in self.rows)

    def measured(self) -> bool:
        """Whether the numbers are there, for these rows or for others."""
        return self._there().get("status") == "done"

    def _there(self) -> dict[str, Any]:
        path = self.place.store.path(self.experiment.key(self.seed, self.scale))
        return hashed.read(path) if path.is_file() else {}

    def run(self, deadline: float | None) -> None:
        place, reference = self.place, self.reference
        cell = place.store.find(self.experiment, self.seed, self.scale) if self.measured() else None
        if cell is None and (known := self.known) is not None:
            cell = measured_again(self.experiment, self.seed, self.scale, known, place.store, place.command)
        if cell is None:
            cell = measured(
                self.experiment,
                self.seed,
                self.scale,
                [place.run(recipe) for recipe in self.recipes],
                [step.folder for step in self.predicted],
                place.store,
                place.command,
                reference.folder / f"shifted-{AS_TRAINED}" if reference else None,
            )
        for e in self.rows:
            row = replace(cell, experiment=e.name, scale=e.scale_name(self.scale), note=e.remark(self.scale))
            place.store.write(row)
