"""Estimate how long a training takes, from trainings that have ended: in a folder of runs, or in cells.

A pace is the median of the seconds per epoch and member, over trainings of the same kind (network, data, batch,
members, transforms); if there are none, of the same network on the same data, then of the same network on other data.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import torch

from calibrant.bench.store import Cell, Store
from calibrant.errors import CalibrantError
from calibrant.files import hashed
from calibrant.files.paths import visible
from calibrant.training import checkpoint
from calibrant.training.environment import device_name
from calibrant.training.recipe import Recipe

Settings = Mapping[str, Any]
KINDS: tuple[Callable[[Settings], str], ...] = (
    lambda s: json.dumps([s.get(k) for k in ("network", "data", "batch", "members", "transforms")], sort_keys=True),
    lambda s: f"{_network(s)} on {s['data']['name']}",
    lambda s: f"{_network(s)} on other data",
)
"""Settings → the kind of a training, from the narrowest to the widest; the last two are in words."""


def _network(settings: Settings) -> str:
    """The name of a network. One for large images has another name, because its pace says nothing about small ones."""
    network = settings["network"]
    return str(network["name"]) + (f" for {network['stem']}" if network.get("stem") else "")


class Paces:
    """Paces by kind, from the settings of ended trainings and the seconds per epoch and member of each."""

    def __init__(self, ended: Iterable[tuple[Settings, float]]) -> None:
        self._by: dict[str, list[float]] = defaultdict(list)
        for settings, seconds in ended:
            for kind in KINDS:
                self._by[kind(settings)].append(seconds)

    def of(self, recipe: Recipe, *, same_kind: bool = False) -> tuple[float | None, str]:
        """The seconds of one training of the recipe, with all points of its selection, and their source in words.

        With `same_kind`, only trainings of the narrowest kind count."""
        settings = recipe.content()
        for kind in KINDS[:1] if same_kind else KINDS:
            if found := self._by.get(kind(settings)):
                words = KINDS[1](settings) if kind is KINDS[0] else kind(settings)
                times = recipe.epochs * recipe.members * len(recipe.points())
                return median(found) * times, f"{words}, {len(found)} cell{'s' * (len(found) > 1)}"
        return None, f"no cell of {_network(settings)}"


def of_cells(cells: Iterable[Cell], seconds: Callable[[Cell], float]) -> Paces:
    """The paces of cells. `seconds` returns the seconds of a cell's training, or 0 to leave the cell out."""
    timed = ((c, seconds(c)) for c in cells if c.timed)
    recipes = ((c.settings["recipe"], c.trainings, spent) for c, spent in timed if spent)
    return Paces((r, spent / (r["epochs"] * r.get("members", 1) * n)) for r, n, spent in recipes)


def seconds_left(recipe: Recipe, run: Path, runs: Path, store: Store) -> float | None:
    """The seconds that are left of a training after its last checkpoint; None if none of its kind has ended."""
    here = device_name("cuda" if torch.cuda.is_available() else "cpu")
    found = (paces.of(recipe, same_kind=True)[0] for paces in (Paces(_ended(runs)), _of_device(store.root, here)))
    whole = next((seconds for seconds in found if seconds), None)
    if whole is None:
        return None
    done = max(checkpoint.epochs(run / "checkpoint"), default=0)
    return whole * (1 - done / (len(recipe.points()) * recipe.epochs))


def _ended(runs: Path) -> Iterator[tuple[Settings, float]]:
    """The ended trainings of a folder of runs."""
    for path in visible(runs, "*/metrics.json"):
        try:
            metrics, settings = hashed.read(path), hashed.read(path.parent / "recipe.json")
        except CalibrantError:  # a damaged run has no time; resuming it raises the error
            continue
        if metrics["train_seconds"]:
            yield settings, metrics["train_seconds"] / (metrics["epochs"] * settings.get("members", 1))


@lru_cache(maxsize=1)
def _of_device(root: Path, device: str) -> Paces:
    cells = Store(root, lambda error: None).cells()  # damaged cells are left out
    return of_cells(cells, lambda cell: cell.seconds * (cell.device == device))
