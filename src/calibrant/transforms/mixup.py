"""mixup (Zhang 2018; AR A.1, DS A.3): x ← λ·x + (1 − λ)·x_π, the same for q, with λ ~ Beta(α, α).

One λ a batch, as in the papers; `per_item` draws one for each item. α = 0 leaves the batch as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.transforms.sampling import beta, check_floating, permutation


@dataclass(frozen=True)
class Mixup:
    """Convex pairs of inputs and of targets (Zhang 2018)."""

    alpha: float = 0.2
    per_item: bool = False
    mixes_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.alpha < 0:
            raise InputError(f"alpha must not be negative, got {self.alpha}; 0 switches mixup off")

    def __call__(
        self, model: torch.nn.Module, x: Tensor, q: Tensor, index: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        return self.mixed(x, q, rng)

    def mixed(self, x: Tensor, q: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """One batch of inputs and soft targets, mixed; for your own training loop."""
        if self.alpha == 0:
            return x, q
        check_floating(x, "mixup")
        n = x.shape[0]
        weight = beta(self.alpha, n if self.per_item else 1, rng).to(x.device)
        other = permutation(n, rng).to(x.device)
        return mix(x, x[other], weight), mix(q, q[other], weight)


def mix(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """weight·a + (1 − weight)·b, `weight` being one number or one an item."""
    w = weight.reshape(-1, *[1] * (a.ndim - 1)).to(a.dtype)
    return w * a + (1 - w) * b
