"""Confidence-calibrated adversarial training (Stutz 2020; AR §5.2, A.1): part of the batch becomes adversarial.

For an example x' = x + δ the target moves from q to uniform with the distance:
    q' = λ(δ)·q + (1 − λ(δ))/K,   λ(δ) = (1 − min(1, ‖δ‖∞ / ε))^ρ
The attack is passed in, (model, x, labels) → x'. If it has `seeded(seed)`, it starts at a point drawn by the run's
generator. Stutz's attack maximises the confidence of any class but the label (`PGD(maximise="confidence")`). It runs on
the network in evaluation mode, so that it does not change BatchNorm's statistics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.nn.evaluation import evaluation


@dataclass(frozen=True, eq=False)
class CCAT:
    """Adversarial examples whose targets move to uniform with distance (Stutz 2020).

    `std`: the per-channel scale that inputs were divided by; with it ε is a distance between pixels in [0, 1].
    """

    attack: Callable[[Any, Tensor, Tensor], Tensor]
    epsilon: float = 0.01
    rho: float = 10.0
    fraction: float = 0.5
    std: tuple[float, ...] | None = None
    mixes_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.epsilon > 0 and self.rho >= 0 and 0 <= self.fraction <= 1):
            raise InputError(
                "epsilon must be positive, rho 0 or more and fraction in [0, 1], "
                f"got {self.epsilon}, {self.rho} and {self.fraction}"
            )

    def __call__(
        self, model: torch.nn.Module, x: Tensor, q: Tensor, index: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        clean = x.shape[0] - int(self.fraction * x.shape[0])
        if clean == x.shape[0]:
            return x, q
        original, attack = x[clean:], self.attack
        if hasattr(attack, "seeded"):
            attack = attack.seeded(int(torch.randint(2**31, (), generator=rng, device=rng.device)))
        with evaluation(model):
            attacked = attack(model, original, q[clean:].argmax(-1)).detach()
        delta = attacked - original
        if self.std is not None:
            delta = delta * delta.new_tensor(self.std).reshape(-1, *[1] * (delta.ndim - 2))
        soft = towards_uniform(q[clean:], delta.flatten(1).abs().amax(1), self.epsilon, self.rho)
        return torch.cat([x[:clean], attacked]), torch.cat([q[:clean], soft])


def towards_uniform(q: Tensor, distance: Tensor, epsilon: float, rho: float) -> Tensor:
    """Return λ·q + (1 − λ)/K with λ = (1 − min(1, distance/ε))^ρ."""
    weight = ((1 - (distance / epsilon).clamp_max(1)) ** rho).unsqueeze(-1).to(q.dtype)
    return weight * q + (1 - weight) / q.shape[-1]
