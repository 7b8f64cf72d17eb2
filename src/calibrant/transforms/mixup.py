"""mixup (Zhang 2018; AR A.1, DS A.3): x ← λ·x + (1 − λ)·x_π, the same for q, with λ ~ Beta(α, α).

One λ per batch, as in the papers; `per_item` draws one for each item. α = 0 leaves the batch unchanged.
Random numbers come from an explicit generator and are drawn on its device, so that nothing waits for the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.settings import number


@dataclass(frozen=True)
class Mixing:
    """The abstract base class of mixup and cutmix, which write `mixed`."""

    alpha: float
    mixes_labels: ClassVar[bool] = True

    def __call__(
        self, model: torch.nn.Module, x: Tensor, q: Tensor, index: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        return self.mixed(x, q, rng)

    def mixed(self, x: Tensor, q: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return one batch of inputs and soft targets, mixed; also for your own training loop."""
        raise TypeError(f"{type(self).__name__} must define mixed")

    def check(self, x: Tensor, q: Tensor) -> None:
        """Refuse tokens and labels, which cannot be mixed."""
        what = type(self).__name__.lower()
        if not q.is_floating_point():
            soft = "calibrant.targets.OneHot(classes)(labels)"
            raise InputError(f"{what} mixes soft targets, and these are labels; pass {soft}")
        if not x.is_floating_point():
            raise InputError(f"{what} mixes numbers, and this input is {x.dtype} (tokens?); drop {what} for it")


@dataclass(frozen=True)
class Mixup(Mixing):
    """Convex pairs of inputs and of targets (Zhang 2018)."""

    alpha: float = 0.2
    per_item: bool = False

    def __post_init__(self) -> None:
        if not number("alpha", self.alpha) >= 0:
            raise InputError(f"alpha must not be negative, got {self.alpha}; 0 switches mixup off")

    def mixed(self, x: Tensor, q: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return one batch of inputs and soft targets, mixed."""
        if self.alpha == 0:
            return x, q
        self.check(x, q)
        n = x.shape[0]
        weight = beta(self.alpha, n if self.per_item else 1, rng).to(x.device)
        other = permutation(n, rng).to(x.device)
        return mix(x, x[other], weight), mix(q, q[other], weight)


def mix(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """Return weight·a + (1 − weight)·b, where `weight` is one number, or one per item."""
    w = weight.reshape(-1, *[1] * (a.ndim - 1)).to(a.dtype)
    return w * a + (1 - w) * b


def beta(alpha: float, n: int, rng: torch.Generator) -> Tensor:
    """Return n draws of Beta(α, α) = G₁ / (G₁ + G₂), G gamma-distributed; α = 0.2 underflows float32.

    `torch.distributions` takes no generator; `torch._standard_gamma`, which it is built on, does.
    """
    if alpha <= 0:
        raise InputError(f"alpha must be positive, got {alpha}")
    shape = torch.full((2, n), alpha, dtype=torch.float64, device=rng.device)
    g = torch._standard_gamma(shape, generator=rng)
    return g[0] / g.sum(0)


def permutation(n: int, rng: torch.Generator) -> Tensor:
    return torch.randperm(n, generator=rng, device=rng.device)
