"""What a table would cost before anything runs: GPU minutes, from the pace of trainings whose cells are in the store.

The pace is the median of minutes per epoch and member over cells of the same network on the same data, else of the
same network on other data, which the plan says. Cells that ran side by side share the GPU's minutes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from calibrant.bench.reproduction import minutes_of
from calibrant.bench.store import Cell
from calibrant.papers import Experiment, Scale
from calibrant.training.recipe import Recipe
from calibrant.training.settings import plain

GPUS = (1, 8, 64)


@dataclass(frozen=True)
class Cost:
    """One row: what is left to train, and what one training takes (None if no network like it has been trained)."""

    experiment: str
    done: int
    trainings: int
    epochs: int
    minutes: float | None  # of one training
    pace: str  # what the estimate is from

    @property
    def total(self) -> float | None:
        return None if self.minutes is None else self.minutes * self.trainings


class Paces:
    """Minutes per epoch and member, by network and data."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._by: dict[tuple[str, str], list[float]] = defaultdict(list)
        for cell in cells:
            if cell.timed and (spent := minutes_of(cell)):
                recipe = cell.settings["recipe"]
                each = spent / (recipe["epochs"] * recipe.get("members", 1) * cell.trainings)
                for data in (recipe["data"]["name"], ""):
                    self._by[_sort(recipe["network"]), data].append(each)

    def of(self, recipe: Recipe) -> tuple[float | None, str]:
        """Minutes of one training of the recipe, all points of its selection included, and what that is from."""
        network, data = _sort(plain(recipe.network)), recipe.data.name
        for key, said in (((network, data), f"{network} on {data}"), ((network, ""), f"{network} on other data")):
            if self._by.get(key):
                each = median(self._by[key]) * recipe.epochs * recipe.members * len(recipe.points())
                return each, f"{said}, {len(self._by[key])} cell{'s' * (len(self._by[key]) > 1)}"
        return None, f"no cell of {network}"


def _sort(network: Mapping[str, Any]) -> str:
    """The name of a network; one for large images is another one: its pace says nothing about small ones."""
    stem = network.get("stem")
    return str(network["name"]) + (f" for {stem}" if stem else "")


def plan(experiments: Sequence[Experiment], cells: Sequence[Cell], seeds: int | None, scale: Scale) -> list[Cost]:
    """The cost of each row; a training that several rows share counts once, for the first of them."""
    paces, there, planned, out = Paces(cells), {c.key for c in cells if c.status == "done"}, set[str](), []
    for e in experiments:
        wanted = range(seeds or e.seeds)
        left = [seed for seed in wanted if e.key(seed, scale) not in there]
        trainings = {e.at(s, scale).key() for seed in left for s in e.seeds_of(seed, scale)} - planned
        recipe = e.at(0, scale)
        out.append(Cost(e.name, len(wanted) - len(left), len(trainings), recipe.epochs, *paces.of(recipe)))
        planned |= trainings
    return out


def wall(costs: Sequence[Cost], gpus: int) -> float:
    """Minutes on so many GPUs: a training is not split, and what has no pace is not in it."""
    known = [c for c in costs if c.minutes is not None and c.trainings]
    return max([sum(c.total or 0.0 for c in known) / gpus, *(c.minutes or 0.0 for c in known)], default=0.0)
