"""DeepFool, L2 (Moosavi-Dezfooli 2016): repeated steps to the nearest boundary of the linearised network.

    h_k = z_k − z_r,   l = argmin_k |h_k| / ‖∇h_k‖₂,   δ ← δ + |h_l| / ‖∇h_l‖₂² · ∇h_l,   x' = x + (1 + overshoot)·δ

k runs over the classes with the largest logits; each takes a backward pass. On a linear network one step is exact. An
item is done when its prediction has changed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.attacks.attack import Attack
from calibrant.attacks.task import Seen, State, Task, spread
from calibrant.functional.settings import at_least

PUSH = 1e-4
"""Added to |h_l|, as in the authors' code, so that the step ends beyond the boundary and not on it."""


@dataclass(frozen=True, kw_only=True)
class DeepFool(Attack):
    """Minimum L2 norm by steps to the nearest linearised boundary (Moosavi-Dezfooli 2016)."""

    iterations: int = 50
    overshoot: float = 0.02
    candidates: int = 9  # classes besides the item's own

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, iterations=1, candidates=1, overshoot=0)

    def objective(self, task: Task, state: State, logits: Tensor) -> Tensor:
        """Return h_k of the candidates: [J, N]. A target has one boundary only, its own."""
        return task.leads(logits, self.candidates)

    def begin(self, task: Task) -> State:
        return {"delta": torch.zeros_like(task.origin)}

    def step(self, task: Task, state: State, seen: Seen) -> State:
        gradient = seen.gradient if seen.gradient.ndim > task.origin.ndim else seen.gradient[None]
        delta = state["delta"] + to_boundary(self.objective(task, state, seen.logits), gradient)
        return {"point": task.origin + (1 + self.overshoot) * delta, "delta": delta, "done": seen.success}


def to_boundary(height: Tensor, gradient: Tensor) -> Tensor:
    """Return the step [N, …] to the nearest boundary, given h [J, N] and ∇h [J, N, …]."""
    size = height.abs().to(gradient.dtype)
    steepness = gradient.flatten(2).square().sum(-1).clamp_min(torch.finfo(gradient.dtype).tiny)
    nearest = (size / steepness.sqrt()).argmin(0)
    rows = torch.arange(len(nearest), device=nearest.device)
    chosen = gradient[nearest, rows]
    return spread((size + PUSH)[nearest, rows] / steepness[nearest, rows], chosen) * chosen
