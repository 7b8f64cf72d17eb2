"""Predictions whose truth is known: the labels are drawn from the softmax of the logits before they are scaled."""

from __future__ import annotations

import torch
from torch import Tensor

import calibrant
from calibrant.types import Predictions


def simulated(
    n: int = 1200, k: int = 4, scale: float | Tensor = 1.0, seed: int = 0, split: str = "unknown"
) -> Predictions:
    """Predictions of n items that are calibrated if `scale` is 1; it may be one number for each class."""
    g = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(n, k, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]
    return calibrant.predictions(z * scale, y, split=split)
