"""Focal loss and its inverse, on soft targets: ℓ = Σ_k q_k · w(p_k) · (−log p_k).

Focal (Lin 2017; RC §3, DS A.3): w(p) = (1 − p)^γ, hard items count more.
Inverse focal (RC Eq. 4): w(p) = (1 + p)^γ̄, easy items count more.
With a one-hot q both are the papers' form, and γ = 0 is cross-entropy.
Sample-dependent γ (Mukhoti 2020, "FLSD-53"): `steps=((0.2, 5.0),), gamma=3.0` uses γ = 5 where p < 0.2 and 3
elsewhere. The choice of γ has no gradient.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.settings import number
from calibrant.losses.item_loss import ItemLoss


@dataclass(eq=False)
class Focal(ItemLoss):
    """Focal: weight (1 − p)^γ, hard items count more. `steps`: pairs (upper bound of p, γ below it), bounds rising."""

    gamma: float = 3.0
    steps: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma, *(gamma for _, gamma in self.steps))
        if list(self.steps) != sorted(self.steps, key=lambda step: step[0]):
            raise InputError(f"steps {self.steps} must have rising bounds")

    def factor(self, log_p: Tensor) -> Tensor:
        return one_minus_p(log_p) ** gamma_by_confidence(log_p, self.gamma, self.steps)


@dataclass(eq=False)
class InverseFocal(ItemLoss):
    """Inverse focal: weight (1 + p)^γ̄, easy items count more (RC, equation 4)."""

    gamma: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)

    def factor(self, log_p: Tensor) -> Tensor:
        return (1 + log_p.exp()) ** self.gamma


def check_gamma(*gammas: float) -> None:
    for gamma in gammas:
        if not 0 <= number("gamma", gamma, infinite=True) < math.inf:
            raise InputError(f"gamma must be 0 or more, got {gamma}; 0 is cross-entropy")


def one_minus_p(log_p: Tensor) -> Tensor:
    """Return 1 − p without cancellation. It is never 0, because x^γ with γ < 1 has an infinite slope there."""
    return (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)


def gamma_by_confidence(log_p: Tensor, gamma: float, steps: tuple[tuple[float, float], ...]) -> Tensor | float:
    """Return γ(p): the γ of the first step whose bound is above p, or `gamma` if there is none."""
    if not steps:
        return gamma
    p = log_p.detach().exp()
    chosen = torch.full_like(p, gamma)
    for bound, below in reversed(steps):
        chosen = torch.where(p < bound, below, chosen)
    return chosen
