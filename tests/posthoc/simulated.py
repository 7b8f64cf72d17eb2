"""What tests of maps share: predictions whose truth is known, and a check of optional packages."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import calibrant
from calibrant.types import Predictions


def simulated(
    n: int = 1200, k: int = 4, scale: float | Tensor = 1.0, seed: int = 0, split: str = "unknown"
) -> Predictions:
    """Logits times `scale` (which may be one number for each class), with labels drawn from their unscaled softmax."""
    g = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(n, k, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]
    return calibrant.predictions(z * scale, y, split=split)


def need_onnx() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name, reason=f"{name} is not installed; pip install 'calibrant[onnx]' to run this")
