"""A run's network on the calibration and test splits with its features, for models of confidence (DS Table 4)."""

from __future__ import annotations

from pathlib import Path

import torch

from calibrant.data import Batches, Data
from calibrant.ensembles.single import predict
from calibrant.training.run_folder import load
from calibrant.types import Predictions, Split

BATCH = 500


def featured(run: Path, device: torch.device, data: Data) -> tuple[Predictions, Predictions]:
    """(calibration, test)."""
    trained = load(run)
    members = [m.to(device) for m in trained.members]

    def said(split: Split) -> Predictions:
        batches = Batches(data[split], BATCH, device=device, mean=trained.mean, std=trained.std)
        model = members if len(members) > 1 else members[0]
        return predict(model, batches, device=device, split=split, classes=data.classes, features=True)

    return said(Split.CALIBRATION), said(Split.TEST)
