"""The steps that train a network, and that measure the robustness levels which AR-AdaLS needs of its vanilla twin."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from calibrant.attacks.store import EDITION as EDITION_OF_RULERS
from calibrant.bench import pace, video
from calibrant.bench.place import BenchStep, Place
from calibrant.data import Data
from calibrant.executors import OutOfTime, Step
from calibrant.files import hashed
from calibrant.files.paths import visible
from calibrant.training import distances, levels
from calibrant.training.recipe import Recipe
from calibrant.training.run import make_fabric, train
from calibrant.training.run_folder import load
from calibrant.training.selection import select
from calibrant.types import Split

CHECKPOINT_EVERY = 5
"""Epochs between checkpoints when a training has a deadline."""
PARALLEL = "parallel.json"
"""The file that records how many steps shared the GPU with a training, itself included."""


@dataclass(frozen=True)
class Train(BenchStep):
    """One training, or the trainings of all points of a selection."""

    recipe: Recipe
    place: Place
    keep_weights: int = 0

    @property
    def key(self) -> str:
        return f"train-{self.folder.name}"

    @property
    def name(self) -> str:
        return f"train {self.recipe.name or self.recipe.network.name}, seed {self.recipe.seed}"

    @property
    def needs(self) -> tuple[str, ...]:
        return (Levels(self.recipe, self.place).key,) if attacked_before(self.recipe) else ()

    @property
    def before(self) -> list[Step]:
        """The steps that must be done before the training."""
        if not attacked_before(self.recipe):
            return []
        attack = Levels(self.recipe, self.place)
        return [Train(attack.twin, self.place), attack]

    @cached_property
    def folder(self) -> Path:
        return self.place.run(self.recipe)

    def data(self) -> Data:
        return self.place.data(self.recipe)

    @property
    def record(self) -> Path:
        """The file that a training writes last."""
        return self.folder / ("metrics.json" if self.recipe.selection is None else "selection.json")

    def done(self) -> bool:
        """Whether the training has ended and kept the weights that are asked for."""
        weights = self.keep_weights if self.recipe.selection is None else 0
        return self.record.is_file() and len(visible(self.folder, "epochs/weights-*.safetensors")) >= weights

    def seconds(self) -> float | None:
        return pace.seconds_left(self.recipe, self.folder, self.place.runs, self.place.store)

    def progress(self) -> str | None:
        if not self.place.how.quiet:
            return None
        epoch, seconds = last_epoch(self.folder / "log.jsonl")
        left = seconds * (self.recipe.epochs - epoch) / 60
        return f"epoch {epoch} of {self.recipe.epochs}, about {left:.0f} min left" if epoch else ""

    def run(self, deadline: float | None) -> None:
        how = replace(self.place.how, keep_weights=max(self.place.how.keep_weights, self.keep_weights))
        if deadline is not None:
            how = replace(how, every=CHECKPOINT_EVERY, listen=_watch(deadline, self.recipe.epochs))
        if attacked_before(self.recipe):
            how = replace(how, levels=self.place.run(levels.vanilla(self.recipe)))
        data = self.data()
        if data[Split.TRAIN].y.ndim > 1:
            data = video.watched(data)
        if self.record.is_file():  # it ended without keeping the weights: train again from the start
            self.record.unlink()
            shutil.rmtree(self.folder / "checkpoint", ignore_errors=True)
        if self.recipe.engine not in ("eager", "graph"):
            torch.compiler.reset()  # else a persistent process reaches torch's recompile limit, and runs eagerly
        if self.recipe.selection is None:
            train(self.recipe, self.folder, how, data)
        else:
            select(self.recipe, self.folder, how, data)
        hashed.write(self.folder / PARALLEL, {"parallel": self.place.parallel})


def attacked_before(recipe: Recipe) -> bool:
    """Whether levels are measured on a twin first; each point of a selection measures its own."""
    return levels.are_needed(recipe) and recipe.selection is None


def last_epoch(log: Path) -> tuple[int, float]:
    """The number of the last epoch in the log of a training, and its seconds; (0, 0.0) if there is none yet."""
    with suppress(OSError, ValueError):  # not begun, or a line is being written
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        return next(((row["epoch"], row["seconds"]) for row in reversed(rows) if "epoch" in row), (0, 0.0))
    return 0, 0.0


def _watch(deadline: float, epochs: int) -> Any:
    """A listener that stops a training if its next epoch, as long as the last one, would end after the deadline."""
    last = time.time()  # so the first epoch includes the start of the training

    def listen(epoch: int, validation: object) -> None:
        nonlocal last
        now = time.time()
        took, last = now - last, now
        if now + took > deadline and epoch < epochs:
            raise OutOfTime

    return listen


@dataclass(frozen=True)
class Levels(BenchStep):
    """The robustness of the training and validation items, measured on a recipe's vanilla twin (AR §4)."""

    recipe: Recipe
    place: Place

    @property
    def twin(self) -> Recipe:
        return levels.vanilla(self.recipe)

    @property
    def ruler(self) -> str:
        return str(levels.target_option(self.recipe, "ruler"))

    @property
    def key(self) -> str:
        return f"levels-{self.ruler}-{EDITION_OF_RULERS}-{self.place.run(self.twin).name}"

    @property
    def name(self) -> str:
        return f"levels of {self.twin.name}, seed {self.recipe.seed}"

    @property
    def needs(self) -> tuple[str, ...]:
        return (Train(self.twin, self.place).key,)

    def done(self) -> bool:
        folder = self.place.run(self.twin) / distances.FOLDER / self.ruler
        return all((folder / f"{split.value}.safetensors").is_file() for split in levels.PARTS)

    def progress(self) -> str | None:
        return "" if self.place.how.quiet else None

    def run(self, deadline: float | None) -> None:
        run, data = self.place.run(self.twin), self.place.data(self.recipe)
        members, device = load(run).members, make_fabric(self.recipe, self.place.how).device
        for split in levels.PARTS:
            distances.load_or_measure(members, data, split, run / distances.FOLDER, ruler=self.ruler, device=device)
