"""A published ResNet-20 loses as much under our corruptions as under the reference's, on other random numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.data.cifar import tiles
from calibrant.nn import build, load_weights
from calibrant.shifts import SHIFTS, corrupt
from tests.shifts.shifts_reference import Legacy, apply

ITEMS = 100


@pytest.mark.parametrize(("name", "least"), [("gaussian_noise", 0.4), ("glass_blur", 0.4), ("snow", 0.05)])
def test_accuracy_drop(big_data: Path, name: str, least: float) -> None:
    labels = torch.from_numpy(np.load(big_data / "logits" / "cifar10_resnet20_akamaster.npz")["labels"][:ITEMS])
    model = build("resnet20", classes=10, shortcut="A")
    load_weights(model, big_data / "weights" / "cifar10_resnet20_akamaster.npz").eval()
    mean, std = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
    x = tiles(big_data / "cifar10" / "test_00.webp", 32)[:ITEMS]

    def accuracy(images: torch.Tensor) -> float:
        with torch.no_grad():
            return float((model((images / 255 - mean) / std).argmax(1) == labels).double().mean())

    numbers = Legacy(0)
    made = [apply(name, image, SHIFTS[name].strengths[32][4], numbers) for image in x.permute(0, 2, 3, 1).numpy()]
    theirs = accuracy(torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2))
    ours = accuracy(corrupt(x, name, 5))
    assert ours < accuracy(x) - least
    assert ours == pytest.approx(theirs, abs=0.12)  # two standard errors of a difference at most
