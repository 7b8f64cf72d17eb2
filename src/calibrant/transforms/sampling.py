"""Beta-distributed mixing weights from an explicit generator, drawn on the generator's device: no wait for the host."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.errors import InputError


def beta(alpha: float, n: int, rng: torch.Generator) -> Tensor:
    """n draws of Beta(α, α) = G₁ / (G₁ + G₂), G gamma-distributed; float64, as α = 0.2 underflows float32.

    `torch.distributions` takes no generator; `torch._standard_gamma`, which it is built on, does.
    """
    if alpha <= 0:
        raise InputError(f"alpha must be positive, got {alpha}")
    shape = torch.full((2, n), alpha, dtype=torch.float64, device=rng.device)
    g = torch._standard_gamma(shape, generator=rng)
    return g[0] / g.sum(0)


def permutation(n: int, rng: torch.Generator) -> Tensor:
    return torch.randperm(n, generator=rng, device=rng.device)


def check_floating(x: Tensor, what: str) -> None:
    if not x.is_floating_point():
        raise InputError(f"{what} mixes numbers, and this input is {x.dtype} (tokens?); drop {what} for it")
