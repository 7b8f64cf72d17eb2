"""Build an ensemble (PEP, MC dropout, SWA, …) from the networks of a run, and measure it for 1, 2, … members.

The networks predict in float32, whatever precision they were trained in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.data import Batches, Data, Part
from calibrant.ensembles import Ensemble, assemble
from calibrant.ensembles.ensemble import LogMean
from calibrant.ensembles.ingredients import Ingredients
from calibrant.errors import unknown
from calibrant.functional.inputs import predictions
from calibrant.papers.experiment import AVERAGING
from calibrant.training.epochs import kept_weights
from calibrant.training.evaluate import summary
from calibrant.training.run_folder import Trained, chosen
from calibrant.training.settings import Choice
from calibrant.types import Predictions, Split

OPTIONS = ("members", "sigma", "p", "where", "distribution", "search", "epochs")
"""The options that an experiment's ensemble may set; `epochs` is how many of the last epochs are averaged."""
CURVE = ("nll", "accuracy", "ece", "auroc")

BATCH = 500


@dataclass(frozen=True)
class Loaded:
    """A training whose networks predict on a device, with its data."""

    run: Path
    trained: Trained
    seed: int
    device: torch.device
    data: Data

    @cached_property
    def members(self) -> list[nn.Module]:
        return [m.to(self.device) for m in self.trained.members]

    def batches(self, part: Part | Split) -> Batches:
        """The items, or those of a split, normalised for the networks."""
        part = self.data[part] if isinstance(part, Split) else part
        return Batches(part, BATCH, device=self.device, mean=self.trained.mean, std=self.trained.std)


def checkpoints_wanted(ensemble: Choice, epochs: int) -> int:
    """How many epochs' weights a training must keep for this ensemble; by default a third of them."""
    if ensemble.name not in AVERAGING:
        return 0
    return min(epochs, int(ensemble.options.get("epochs", max(2, epochs // 3))))


def build_ensemble(ensemble: Choice, loaded: Loaded) -> tuple[Ensemble, dict[str, Any]]:
    """The ensemble, and what to record of it: its size, and the σ of PEP."""
    for key in ensemble.options:
        if key not in OPTIONS:
            raise unknown(f"option of ensemble {ensemble.name!r}", key, OPTIONS)
    folder = chosen(loaded.run)
    options = {k: v for k, v in ensemble.options.items() if k != "epochs"}
    made = assemble(
        ensemble.name,
        Ingredients(
            loaded.members,
            **options,
            seed=loaded.seed,
            held_out=lambda: loaded.batches(Split.CALIBRATION),
            checkpoints=lambda: list(kept_weights(folder).values()),
            training=lambda: (x for x, _, _ in loaded.batches(Split.TRAIN)),
            class_axis=-1,  # as for every network trained here
        ),
    )
    record: dict[str, Any] = {"ensemble_size": made.size}
    if ensemble.name == "pep":
        record["sigma"] = made.sigma  # type: ignore[attr-defined]
    return made, record


class _Images:
    """The images of batches, which can be read several times."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Tensor]:
        return (x for x, _, _ in self._batches)


def size_curve(made: Ensemble, loaded: Loaded) -> tuple[Predictions, dict[str, list[float | None]]]:
    """The pooled predictions of the test set, and the metrics of the first 1, 2, … members."""
    data, test = loaded.data, loaded.batches(Split.TEST)
    labels = torch.cat([y for _, y, _ in test]).cpu()
    ids = [f"{i}" for i in data[Split.TEST].index.tolist()]
    about: dict[str, Any] = {"split": Split.TEST, "classes": data.classes, "ids": ids, "raw": made.size == 1}
    return curve((z.cpu() for z in made.over(_Images(test), class_axis=-1)), labels, about)


def curve(
    members: Iterable[Tensor], labels: Tensor, about: dict[str, Any]
) -> tuple[Predictions, dict[str, list[float | None]]]:
    """Pool the logits of members one by one; return the pooled predictions and the metrics after each member."""
    mean, rows = LogMean(), {name: list[float | None]() for name in CURVE}
    for logits in members:
        mean.add(logits)
        p = predictions(mean.value() if mean.count > 1 or not about["raw"] else logits, labels, **about)
        for name, value in summary(p, CURVE).items():
            rows[name].append(value)
    return p, rows
