"""A run's networks as an ensemble (PEP, MC dropout, SWA, …) on the calibration and test splits.

The networks predict in float32, whatever precision they were trained in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from calibrant.data import Batches, Data
from calibrant.ensembles import assemble
from calibrant.ensembles.ingredients import Ingredients
from calibrant.errors import unknown
from calibrant.training.epochs import kept_weights
from calibrant.training.run_folder import chosen, load
from calibrant.training.settings import Choice
from calibrant.types import Predictions, Split

AVERAGING = ("swa", "swag", "snapshot")
OPTIONS = ("members", "sigma", "p", "where", "distribution", "search", "epochs")
"""What an experiment's ensemble may set; `epochs`: how many of the last ones leave weights to average."""

BATCH = 500


def checkpoints_wanted(ensemble: Choice | None, epochs: int) -> int:
    """Epochs whose weights a training must keep for this ensemble: a third of them unless it says."""
    if ensemble is None or ensemble.name not in AVERAGING:
        return 0
    return min(epochs, int(ensemble.options.get("epochs", max(2, epochs // 3))))


def pooled(
    ensemble: Choice, run: Path, seed: int, device: torch.device, data: Data
) -> tuple[dict[Split, Predictions], dict[str, Any]]:
    """Pooled predictions by split, and what is worth recording of the ensemble."""
    for key in ensemble.options:
        if key not in OPTIONS:
            raise unknown(f"option of ensemble {ensemble.name!r}", key, OPTIONS)
    trained = load(run)
    folder = chosen(run)

    def batches(split: Split) -> Batches:
        return Batches(data[split], BATCH, device=device, mean=trained.mean, std=trained.std)

    options = {k: v for k, v in ensemble.options.items() if k != "epochs"}
    made = assemble(
        ensemble.name,
        Ingredients(
            [m.to(device) for m in trained.members],
            **options,
            seed=seed,
            held_out=lambda: batches(Split.CALIBRATION),
            checkpoints=lambda: kept_weights(folder),
            training=lambda: (x for x, _, _ in batches(Split.TRAIN)),
            class_axis=-1,  # of every network that was trained here
        ),
    )
    wanted = (Split.CALIBRATION, Split.TEST)
    found = {s: made.predict(batches(s), device=device, split=s, classes=data.classes, class_axis=-1) for s in wanted}
    said: dict[str, Any] = {"ensemble_size": made.size}
    if ensemble.name == "pep":
        said["sigma"] = made.sigma  # type: ignore[attr-defined]
    return found, said
