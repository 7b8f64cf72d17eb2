"""A small overfitted network on the bundled digits, so overconfident that every ensemble helps."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Overfitted:
    model: nn.Module
    calibration: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


@pytest.fixture(scope="session")
def overfitted() -> Overfitted:
    from sklearn.datasets import load_digits

    digits = load_digits()
    g = torch.Generator().manual_seed(0)
    order = torch.randperm(len(digits.target), generator=g)
    x = (torch.tensor(digits.data, dtype=torch.float32) / 16)[order].reshape(-1, 1, 8, 8)
    y = torch.tensor(digits.target)[order].long()
    noisy = y[:300].clone()
    flip = torch.rand(300, generator=g) < 0.1
    noisy[flip] = torch.randint(0, 10, (int(flip.sum()),), generator=g)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Dropout(0.2), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip
        optimiser = torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(150):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[:300]), noisy).backward()
            optimiser.step()
    return Overfitted(model.eval(), (x[300:900], y[300:900]), (x[900:], y[900:]))
