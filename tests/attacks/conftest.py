"""A small convolutional network trained on the bundled digits, with normalised inputs, to be attacked."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks import Bounds


@dataclass(frozen=True)
class Victim:
    model: nn.Module
    x: Tensor  # what the model is fed
    y: Tensor
    bounds: Bounds


@pytest.fixture(scope="session")
def victim() -> Victim:
    from sklearn.datasets import load_digits

    held = load_digits()
    bounds = Bounds(mean=(0.3,), std=(0.4,))
    x = bounds.inputs(torch.tensor(held.images / 16, dtype=torch.float32)[:, None], torch.float32)
    y = torch.tensor(held.target)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(16 * 16, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10),
        )  # fmt: skip
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(12):
            for rows in torch.randperm(1500).split(100):
                optimiser.zero_grad()
                nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
                optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    model.eval()
    return Victim(model, x[1500:1560], y[1500:1560], bounds)
