"""L_p norm of the logits (RC §3, Joo 2021): α · mean_i ‖g(x_i)‖_p. The paper's L₁ is p = 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.settings import number
from calibrant.losses.inputs import at_least_float32, item_weights, weighted_mean
from calibrant.protocols import Batch


@dataclass(frozen=True)
class LpNorm:
    """α times the L_p norm of the logits (RC §3)."""

    weight: float = 0.01
    p: float = 1.0

    def __post_init__(self) -> None:
        if not number("p", self.p, infinite=True) >= 1:
            raise InputError(f"p must be at least 1 for a norm, got {self.p}")

    def __call__(self, logits: Tensor, batch: Batch | Tensor | None = None) -> Tensor:
        return self.weight * weighted_mean(
            torch.linalg.vector_norm(at_least_float32(logits), ord=self.p, dim=-1), item_weights(batch)
        )
