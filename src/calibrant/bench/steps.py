"""The steps of an experiment: train (after the levels that its targets need) → predict → measure. A network that
someone else trained is `downloaded` instead.

A step's key is a hash of all that decides its output, so what two experiments need is made once: the vanilla network of
AR's Table 3 is also the one whose levels AR-AdaLS trains with. Engine, device and parallelism are in no key.

    runs/KEY/            a training; its weights stay here, its predictions go into the store
    runs/predict-KEY/    predictions of an ensemble, or of the network on shifted data
    results/             cells, made by the measure steps
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from calibrant.bench.downloaded import Downloaded
from calibrant.bench.ensembles import Loaded
from calibrant.bench.measure import measured, measured_from_logits
from calibrant.bench.place import BenchStep, Place
from calibrant.bench.predict import RECORD, SHIFTED, checkpoints, predict, predictors, request
from calibrant.bench.store import KEY_LENGTH, Cell, read_body
from calibrant.bench.train import Train
from calibrant.errors import FileError
from calibrant.executors import Step
from calibrant.files.paths import visible
from calibrant.papers import AS_TRAINED, Experiment, Scale
from calibrant.papers.experiment import EDITIONS
from calibrant.training.environment import threads
from calibrant.training.recipe import digest
from calibrant.training.run import make_fabric
from calibrant.training.run_folder import load
from calibrant.training.settings import Choice


def trained(e: Experiment, seed: int, scale: Scale, place: Place) -> Train | Downloaded:
    """The step that makes an experiment's network for one seed (of a pool, one of its networks)."""
    if e.published is not None:
        return Downloaded(e.at(seed, scale), e.published, place)
    return Train(e.at(seed, scale), place, checkpoints(e, scale))


@dataclass(frozen=True)
class Predict(BenchStep):
    """Predictions of an ensemble, or of the network itself on other data than its own test set."""

    experiment: Experiment
    ensemble: Choice | None
    seed: int
    scale: Scale
    place: Place

    @property
    def network(self) -> Train | Downloaded:
        return trained(self.experiment, self.seed, self.scale, self.place)

    @cached_property
    def key(self) -> str:
        asked = request(self.experiment, self.ensemble, self.scale)
        return f"predict-{digest([EDITIONS['predict'], self.network.key, asked, self.seed])[:KEY_LENGTH]}"

    @property
    def name(self) -> str:
        own = "" if self.ensemble is None else f", {self.ensemble.name}"
        return f"predict {self.experiment.name}{own}, seed {self.seed}"

    @property
    def needs(self) -> tuple[str, ...]:
        return (self.network.key,)

    @property
    def folder(self) -> Path:
        return self.place.runs / self.key

    def done(self) -> bool:
        return (self.folder / RECORD).is_file()

    def run(self, deadline: float | None) -> None:
        how, network = self.place.how, self.network
        device = make_fabric(network.recipe, how).device
        loaded = Loaded(network.folder, load(network.folder), self.seed, device, network.data())
        predict(self.experiment, self.ensemble, self.scale, loaded, self.folder, how.root)

    def progress(self) -> str:
        sets = len(visible(self.folder / SHIFTED / "cells", "*.npz"))
        return f"{sets} shifted sets predicted" if sets else ""


@dataclass(frozen=True)
class Measure(BenchStep):
    """Fit calibrators and compute metrics and intervals from predictions. One cell can be several `rows`."""

    rows: tuple[Experiment, ...]
    seed: int
    scale: Scale
    place: Place
    gpu: ClassVar[bool] = False

    @property
    def experiment(self) -> Experiment:
        return self.rows[0]

    @cached_property
    def key(self) -> str:
        return f"measure-{self.experiment.key(self.seed, self.scale)[:KEY_LENGTH]}"

    @property
    def name(self) -> str:
        more = f" (and {len(self.rows) - 1} more rows)" if len(self.rows) > 1 else ""
        return f"{self.experiment.name}{more}, seed {self.seed}, {self.experiment.scale_name(self.scale)}"

    @property
    def networks(self) -> list[Train | Downloaded]:
        """The steps that make the cell's network, or each network of its pool."""
        own = self.experiment
        return [trained(own, seed, self.scale, self.place) for seed in own.seeds_of(self.seed, self.scale)]

    @property
    def predicted(self) -> dict[str, list[Predict]]:
        """Predictor → its predict step for each training; predictors that need none are left out."""
        alone, seeds = self.experiment.alone(), self.experiment.seeds_of(self.seed, self.scale)
        return {
            AS_TRAINED if e is None else e.name: [Predict(alone, e, s, self.scale, self.place) for s in seeds]
            for e in predictors(alone, self.scale)
            if any(request(alone, e, self.scale).values())
        }

    @property
    def reference(self) -> Predict | None:
        found = self.experiment.of_reference()
        return None if found is None else Predict(found, None, self.seed, self.scale, self.place)

    @property
    def known(self) -> Cell | None:
        """Another cell of the same training, if the predictions in the store are enough to measure this one."""
        (first, *more), own = self.networks, self.experiment
        if more or self.predicted or self.reference or own.block is not None or first.recipe.selection is not None:
            return None
        return None if first.done() else self.place.store.of_training(first.folder.name)

    @cached_property
    def before(self) -> list[Step]:
        """The steps that must be done before the cell can be measured, each after those that it needs.

        Cached, because the schedule reads `needs` again and again."""
        if self.known is not None or self.damage is not None:
            return []
        reference = [] if self.reference is None else [self.reference]
        networks = [*(step.network for step in reference), *self.networks]
        predicted = [step for each in self.predicted.values() for step in each]
        return [*(step for n in networks for step in (*n.before, n)), *reference, *predicted]

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(step.key for step in self.before)

    def done(self) -> bool:
        found, _ = self._stored()
        return found.get("status") == "done" and all(e.name in found["rows"] for e in self.rows)

    def measured(self) -> bool:
        """Whether the numbers are in the store, for these rows or for others."""
        return self._stored()[0].get("status") == "done"

    @property
    def damage(self) -> FileError | None:
        """What is wrong with the cell's file: edited, damaged or of another version. Such a file is never replaced."""
        return self._stored()[1]

    def _stored(self) -> tuple[dict[str, Any], FileError | None]:
        file = self.place.store.path(self.experiment.key(self.seed, self.scale))
        try:
            return read_body(file) if file.is_file() else {}, None
        except FileError as error:
            return {}, error

    def run(self, deadline: float | None) -> None:
        if self.damage is not None:
            raise FileError(f"{self.damage}; if you delete it, the same command measures the cell again")
        with threads(1):  # the matrices are small: on a busy machine, further threads mostly wait for each other
            cell = self._cell()
        for e in self.rows:
            row = replace(cell, experiment=e.name, scale=e.scale_name(self.scale), note=e.remark(self.scale))
            self.place.store.write(row)

    def _cell(self) -> Cell:
        place, reference = self.place, self.reference
        cell = place.store.find(self.experiment, self.seed, self.scale) if self.measured() else None
        if cell is not None:
            return cell
        if (known := self.known) is not None:
            return measured_from_logits(self.experiment, self.seed, self.scale, known, place.store, place.command)
        return measured(
            self.experiment,
            self.seed,
            self.scale,
            [network.folder for network in self.networks],
            {name: [step.folder for step in each] for name, each in self.predicted.items()},
            place.store,
            place.command,
            reference.folder / SHIFTED if reference else None,
        )
