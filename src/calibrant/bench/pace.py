"""How long trainings take, from those that have ended: in the folder of runs, else in the cells of the same device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import torch

from calibrant.bench.store import Store
from calibrant.errors import CalibrantError
from calibrant.files import hashed
from calibrant.files.paths import visible
from calibrant.training import checkpoint
from calibrant.training.environment import device_name
from calibrant.training.recipe import Recipe


def seconds_left(recipe: Recipe, run: Path, runs: Path, store: Store) -> float | None:
    """What is left of a training, from where its checkpoint stands; None if none like it has ended."""
    found = _of_runs(runs, kind(recipe.content())) or _of_cells(store.root, kind(recipe.content()))
    if found is None:
        return None
    points = len(recipe.points())
    return found * (points * recipe.epochs - max(checkpoint.epochs(run / "checkpoint"), default=0))


def kind(settings: Mapping[str, Any]) -> str:
    """Trainings of one kind take as long: same network, data, batch and number of members."""
    return json.dumps([settings.get(k) for k in ("network", "data", "batch", "members", "transforms")], sort_keys=True)


def _of_runs(runs: Path, wanted: str) -> float | None:
    """Median seconds per epoch of the trainings here that have ended."""
    found = []
    for path in visible(runs, "*/metrics.json"):
        try:
            metrics, settings = hashed.read(path), hashed.read(path.parent / "recipe.json")
        except CalibrantError:  # a damaged run says nothing about time, and whoever resumes it is told
            continue
        if kind(settings) == wanted:
            found.append(metrics["train_seconds"] / metrics["epochs"])
    return median(found) if found else None


@lru_cache(maxsize=1)
def _cells(root: Path, device: str) -> dict[str, list[float]]:
    out: dict[str, list[float]] = {}
    for cell in Store(root).cells():
        if cell.timed and cell.device == device:
            recipe = cell.settings["recipe"]
            out.setdefault(kind(recipe), []).append(cell.seconds / (recipe["epochs"] * cell.trainings))
    return out


def _of_cells(root: Path, wanted: str) -> float | None:
    here = device_name("cuda" if torch.cuda.is_available() else "cpu")
    found = _cells(root, here).get(wanted)
    return median(found) if found else None
