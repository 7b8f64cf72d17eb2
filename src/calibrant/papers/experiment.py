"""An experiment: one row of a paper's table, as a frozen record of everything that decides its numbers.

A recipe (data, network, loss, targets, transforms, schedule, selection), what is done with the trained network
(ensemble, calibrators, shifts), the metrics, the number of seeds, and what the paper reports.
A *cell* is an experiment at one seed and one scale; its key is the content of its settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from calibrant.papers.reported import AS_TRAINED
from calibrant.training.recipe import Recipe, digest
from calibrant.training.settings import Choice, plain

Scale = Literal["smoke", "small", "paper"]
"""`smoke`: one epoch on a few hundred items, to see that it runs; `small`: a tenth of the epochs; `paper`: all."""

SMOKE_SIZES = {"train": 512, "validation": 128, "calibration": 128, "test": 256}
SMOKE_MEMBERS = 2
SMOKE_NETWORKS = {"wide_resnet28_10": "resnet29v2"}
"""Networks that two cores do not get through in minutes → a lighter one of the same family, at smoke scale only."""
SMALL_SHARE, SMALL_EPOCHS = 0.1, 5


@dataclass(frozen=True)
class Experiment:
    """`reported` holds the paper's numbers as fractions: variant (`as_trained` or a calibrator) → metric → value."""

    paper: str
    table: str
    row: str
    recipe: Recipe
    seeds: int = 1
    ensemble: Choice | None = None
    calibrators: tuple[str, ...] = ()
    shifts: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("accuracy", "nll", "brier", "ece", "ece_mass", "auroc", "aurc", "gap")
    reported: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.paper}/{self.table}/{self.row}"

    def at(self, seed: int, scale: Scale) -> Recipe:
        """The recipe of one cell."""
        recipe = replace(self.recipe, seed=seed)
        if scale == "smoke":
            squeezed = replace(recipe.scaled(1), network=self._lighter(recipe.network))
            return replace(squeezed, data=replace(recipe.data, sizes=SMOKE_SIZES), batch=min(recipe.batch, 64))
        if scale == "small":
            return recipe.scaled(max(SMALL_EPOCHS, round(recipe.epochs * SMALL_SHARE)))
        return recipe

    def remark(self, scale: Scale) -> str:
        """What to know of a cell's numbers; at smoke scale also which network stood in for the row's own."""
        own, used = self.recipe.network.name, self.at(0, scale).network.name
        return self.note if own == used else f"smoke: {used} instead of {own}; {self.note}".removesuffix("; ")

    @staticmethod
    def _lighter(network: Choice) -> Choice:
        return replace(network, name=SMOKE_NETWORKS.get(network.name, network.name))

    def pooled(self, scale: Scale) -> Choice | None:
        """The ensemble of one cell; at smoke scale a pair, which runs the same code."""
        if self.ensemble is None or scale != "smoke" or "members" not in self.ensemble.options:
            return self.ensemble
        return Choice(self.ensemble.name, {**self.ensemble.options, "members": SMOKE_MEMBERS})

    def settings(self, seed: int, scale: Scale) -> dict[str, Any]:
        """What decides a cell's numbers, as plain JSON; what the paper reports does not."""
        recipe = {k: v for k, v in self.at(seed, scale).plain().items() if k not in ("name", "about")}
        return {
            "recipe": recipe,
            "ensemble": plain(self.pooled(scale)),
            "calibrators": list(self.calibrators),
            "shifts": list(self.shifts),
            "metrics": list(self.metrics),
            "scale": scale,
        }

    def key(self, seed: int, scale: Scale) -> str:
        return digest(self.settings(seed, scale))


@dataclass(frozen=True)
class Paper:
    """A line of the table of papers."""

    name: str
    title: str
    experiments: tuple[Experiment, ...]


__all__ = ["AS_TRAINED", "Experiment", "Paper", "Scale"]
