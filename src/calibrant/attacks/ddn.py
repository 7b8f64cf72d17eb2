"""DDN (Rony 2019): a minimum-norm attack that decouples direction and norm. It is the cheap substitute for CW.

    δ ← δ + α_t · g/‖g‖,   ε ← (1 − γ_t)·ε after a success, (1 + γ_t)·ε otherwise,   δ ← ε · δ/‖δ‖,   clip

The paper starts every item at ε = 1 pixel and takes 100 steps or more with γ = 0.05, which takes far too long where
distances are a tenth of a pixel. Here each item has its own scale, so that few steps are enough: ε starts where the
linear model reaches the boundary, α is in units of ε, and α and γ fall along a cosine. g is the gradient of the margin
instead of −log p_r, so that δ ends along the normal of one boundary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.attacks.attack import Attack
from calibrant.attacks.task import Seen, State, Task, direction, norms, spread
from calibrant.errors import InputError
from calibrant.functional.settings import at_least, positive

FINEST = 0.02
"""The last α and γ, as a share of the first."""
SHORTEST, LONGEST = 1e-4, 0.25
"""Limits of the first ε, as shares of the bounds' range and of the diagonal of the box."""


@dataclass(frozen=True, kw_only=True)
class DDN(Attack):
    """Minimum L2 norm by decoupled direction and norm: a cheap substitute for CW (Rony 2019)."""

    iterations: int = 20
    gamma: float = 0.3
    alpha: float = 1.0  # in units of ε

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, iterations=1)
        positive(self, "alpha", "gamma")
        if self.gamma >= 1:
            raise InputError(f"gamma={self.gamma} must be below 1")

    def objective(self, task: Task, state: State, logits: Tensor) -> Tensor:
        return task.margin(logits)

    def begin(self, task: Task) -> State:
        return {"epsilon": torch.zeros_like(task.clearance, dtype=task.origin.dtype)}

    def step(self, task: Task, state: State, seen: Seen) -> State:
        wave = (1 + torch.cos(state["t"] * (math.pi / self.iterations))) / 2
        wave = (FINEST + (1 - FINEST) * wave).to(task.origin.dtype)
        gamma = torch.where(seen.success, -self.gamma, self.gamma) * wave
        epsilon = torch.where(state["t"] > 0, (1 + gamma) * state["epsilon"], self._reach(task, seen))
        ascent = spread(self.alpha * wave * epsilon, task.origin) * direction(seen.gradient)
        delta = state["point"] - task.origin + ascent
        return {"point": task.origin + spread(epsilon, delta) * direction(delta), "epsilon": epsilon}

    def _reach(self, task: Task, seen: Seen) -> Tensor:
        """Return the distance at which the linear model of the margin reaches zero."""
        steepness = norms(seen.gradient, 2).clamp_min(torch.finfo(seen.gradient.dtype).tiny)
        reach = (-task.margin(seen.logits)).clamp_min(0.0) / steepness
        diagonal = math.sqrt(task.origin[0].numel()) * task.bounds.range
        return reach.to(seen.gradient.dtype).clamp(SHORTEST * task.bounds.range, LONGEST * diagonal)
