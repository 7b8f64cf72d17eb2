"""Where a command works (its store, its folder of runs, how it runs them), and what all steps of `bench` share."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from calibrant.bench.store import KEY_LENGTH, Store
from calibrant.data import Data
from calibrant.papers.experiment import EDITIONS
from calibrant.training.recipe import DataSettings, Recipe, digest
from calibrant.training.run import How, data_of
from calibrant.training.settings import Choice, build, plain


@dataclass(frozen=True)
class Place:
    """Where and how a command works. Nothing in it changes a number."""

    results: Path
    runs: Path
    how: How = How()  # noqa: RUF009
    command: str = ""
    parallel: int = 1  # steps at a time on one GPU

    @property
    def store(self) -> Store:
        return Store(self.results)

    def run(self, recipe: Recipe) -> Path:
        """The folder of a training. Each edition of the training step has its own."""
        edition = EDITIONS["train"]
        return self.runs / (digest([edition, recipe.key()]) if edition else recipe.key())[:KEY_LENGTH]

    def data(self, recipe: Recipe) -> Data:
        return _loaded(json.dumps(plain(recipe.data), sort_keys=True), self.how.root, self.how.factory)


@lru_cache(maxsize=4)
def _loaded(settings: str, root: Any, factory: str | None) -> Data:
    """The data set of these settings, cached because a process runs many steps on it."""
    recipe = Recipe(Choice("mlp"), data=build(DataSettings, json.loads(settings)))  # the network does not matter
    return data_of(recipe, How(root=root, factory=factory))


class BenchStep:
    """What all steps share. By default a step wants the accelerator, and its duration is unknown."""

    place: Place
    gpu: ClassVar[bool] = True

    @property
    @abstractmethod
    def key(self) -> str: ...

    @property
    def lease(self) -> Path:
        return self.place.runs / ".leases" / self.key

    def seconds(self) -> float | None:
        return None

    def progress(self) -> str | None:
        """How far the running step is, in words; empty if that is unknown, None if the step shows a bar itself."""
        return ""
