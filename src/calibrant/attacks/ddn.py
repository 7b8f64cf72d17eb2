"""DDN (Rony 2019): a minimum-norm attack that decouples direction and norm; the cheap ruler of CW's distance.

    δ ← δ + α_t · g/‖g‖,   ε ← (1 − γ_t)·ε after a success, (1 + γ_t)·ε otherwise,   δ ← ε · δ/‖δ‖,   clip

g is the gradient of −log p_r, and here of the margin in the second half. The paper starts every item at ε = 1 pixel,
with α from 1 to 0.01 by a cosine, γ = 0.05 and 100 steps or more: far too long where distances are a tenth of it. Here
the scale is the item's own, so that few steps are enough: ε starts where the linear model of the log-odds reaches
zero, α is in units of ε, γ falls by the same cosine, ε grows by half until the first success (for up to four times
the iterations), and the end is searched on the way to the best point (`boundary`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.attacks.attack import Attack
from calibrant.attacks.task import Seen, State, Task, direction, norms, spread
from calibrant.errors import InputError

GROWTH, LONGER = 1.5, 4
FINEST_ALPHA, FINEST_GAMMA = 0.01, 0.02
SHORTEST, LONGEST = 1e-4, 0.25
"""Limits of the first ε: of the bounds' range, and of the diagonal of the box."""


@dataclass(frozen=True, kw_only=True)
class DDN(Attack):
    """Minimum L2 norm by decoupled direction and norm: the cheap ruler (Rony 2019)."""

    iterations: int = 20
    gamma: float = 0.3
    alpha: float = 2.0  # in units of ε
    looks: ClassVar[int] = 4

    def __post_init__(self) -> None:
        if self.iterations < 1 or not FINEST_GAMMA <= self.gamma < 1 or not self.alpha > 0:
            raise InputError(f"iterations ≥ 1, {FINEST_GAMMA} ≤ gamma < 1 and alpha > 0; got {self}")

    @property
    def steps(self) -> int:
        return self.iterations

    def objective(self, task: Task, state: State, logits: Tensor) -> Tensor:
        """The log-odds, which all other classes enter, then the margin to the nearest, whose normal δ ends along."""
        return torch.where(2 * state["t"] < self.iterations, task.odds(logits), task.margin(logits))

    def begin(self, task: Task) -> State:
        zero = torch.zeros_like(task.reference, dtype=task.origin.dtype)
        start = {"point": task.origin.clone(), "done": task.reference < 0}
        return {**start, "t": torch.zeros_like(task.reference), "epsilon": zero}

    def step(self, task: Task, state: State, seen: Seen) -> State:
        delta, t = state["point"] - task.origin, state["t"]
        wave = (1 + torch.cos(t.clamp_max(self.iterations).to(delta.dtype) * (math.pi / self.iterations))) / 2
        gamma = FINEST_GAMMA + (self.gamma - FINEST_GAMMA) * wave
        ever = seen.success | (state["nearest"] < torch.inf)
        up = torch.where(ever, 1 + gamma, GROWTH)
        epsilon = state["epsilon"] * torch.where(seen.success, 1 - gamma, up)
        epsilon = torch.where(t > 0, epsilon, self._reach(task, seen))
        alpha = self.alpha * epsilon * (FINEST_ALPHA + (1 - FINEST_ALPHA) * wave)
        moved = direction(delta + spread(alpha, delta) * direction(seen.gradient))
        return {
            "point": task.origin + spread(epsilon, delta) * moved,
            "epsilon": epsilon,
            "t": t + 1,
            "done": (t + 1 >= self.iterations) & (ever | (t + 1 >= LONGER * self.iterations)),
        }

    def _reach(self, task: Task, seen: Seen) -> Tensor:
        """Where the linear model of the log-odds at the origin reaches zero."""
        steepness = norms(seen.gradient, 2).clamp_min(torch.finfo(seen.gradient.dtype).tiny)
        diagonal = math.sqrt(task.origin[0].numel()) * task.bounds.range
        reach = (-task.odds(seen.logits)).clamp_min(0.0) / steepness
        return reach.to(seen.gradient.dtype).clamp(SHORTEST * task.bounds.range, LONGEST * diagonal)
