"""How long trainings take, from those that have ended: in a folder of runs, or in cells.

A pace is the median of the seconds per epoch and member over trainings of the same kind (network, data, batch, members,
transforms), else of the same network on the same data, else of the same network on other data.
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
SORTS: tuple[Callable[[Settings], str], ...] = (
    lambda s: json.dumps([s.get(k) for k in ("network", "data", "batch", "members", "transforms")], sort_keys=True),
    lambda s: f"{_network(s)} on {s['data']['name']}",
    lambda s: f"{_network(s)} on other data",
)
"""What a training is like, ever more loosely; the last two say it in words."""


def _network(settings: Settings) -> str:
    """The name of a network; one for large images is another one: its pace says nothing about small ones."""
    network = settings["network"]
    return str(network["name"]) + (f" for {network['stem']}" if network.get("stem") else "")


class Paces:
    """From the settings of trainings, and the seconds per epoch and member of each."""

    def __init__(self, ended: Iterable[tuple[Settings, float]]) -> None:
        self._by: dict[str, list[float]] = defaultdict(list)
        for settings, seconds in ended:
            for sort in SORTS:
                self._by[sort(settings)].append(seconds)

    def of(self, recipe: Recipe, *, alike: bool = False) -> tuple[float | None, str]:
        """Seconds of one training of the recipe, all points of its selection included, and what that is from; with
        `alike`, only from trainings of the same kind."""
        settings = recipe.content()
        for sort in SORTS[:1] if alike else SORTS:
            if found := self._by.get(sort(settings)):
                said = SORTS[1](settings) if sort is SORTS[0] else sort(settings)
                times = recipe.epochs * recipe.members * len(recipe.points())
                return median(found) * times, f"{said}, {len(found)} cell{'s' * (len(found) > 1)}"
        return None, f"no cell of {_network(settings)}"


def of_cells(cells: Iterable[Cell], seconds: Callable[[Cell], float]) -> Paces:
    """The paces of cells; `seconds` of one, or 0 where it says nothing."""
    timed = ((c, seconds(c)) for c in cells if c.timed)
    recipes = ((c.settings["recipe"], c.trainings, spent) for c, spent in timed if spent)
    return Paces((r, spent / (r["epochs"] * r.get("members", 1) * n)) for r, n, spent in recipes)


def seconds_left(recipe: Recipe, run: Path, runs: Path, store: Store) -> float | None:
    """What is left of a training, from where its checkpoint stands; None if none like it has ended."""
    here = device_name("cuda" if torch.cuda.is_available() else "cpu")
    whole = Paces(_ended(runs)).of(recipe, alike=True)[0] or _of_device(store.root, here).of(recipe, alike=True)[0]
    if whole is None:
        return None
    done = max(checkpoint.epochs(run / "checkpoint"), default=0)
    return whole * (1 - done / (len(recipe.points()) * recipe.epochs))


def _ended(runs: Path) -> Iterator[tuple[Settings, float]]:
    """The trainings of a folder."""
    for path in visible(runs, "*/metrics.json"):
        try:
            metrics, settings = hashed.read(path), hashed.read(path.parent / "recipe.json")
        except CalibrantError:  # a damaged run says nothing about time, and whoever resumes it is told
            continue
        if metrics["train_seconds"]:
            yield settings, metrics["train_seconds"] / (metrics["epochs"] * settings.get("members", 1))


@lru_cache(maxsize=1)
def _of_device(root: Path, device: str) -> Paces:
    cells = Store(root, lambda error: None).cells()  # a damaged cell says nothing about time
    return of_cells(cells, lambda cell: cell.seconds * (cell.device == device))
