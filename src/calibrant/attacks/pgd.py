"""PGD (Madry 2018; SS Table E.2): ascent of −log p_r inside a ball of radius ε, projected back after every step.

    L∞:  x ← clip( Π_ε( x + α · sign g ) )          L2:  x ← clip( Π_ε( x + α · g/‖g‖₂ ) )

`maximise = "confidence"` climbs max_{k ≠ r} log p_k instead, the confidence of any other class. This is CCAT's attack
(Stutz 2020). The two differ where several classes share the probability that r loses.

It starts at a random point of the ball. The seed gives all items the same offset, so that the start of an item does not
depend on the other items. The last point is returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from calibrant.attacks.attack import Attack
from calibrant.attacks.task import Seen, State, Task, direction, norms, spread
from calibrant.errors import InputError
from calibrant.functional.settings import at_least, positive


@dataclass(frozen=True, kw_only=True)
class PGD(Attack):
    """Projected gradient ascent in an L∞ or L2 ball, from a random start (Madry 2018)."""

    epsilon: float = 8 / 255
    alpha: float | None = None  # step size; None: 2.5 ε / iterations, enough to cross the ball
    iterations: int = 40
    norm: float = float("inf")  # type: ignore[misc]  # a setting here, a constant elsewhere
    maximise: Literal["loss", "confidence"] = "loss"
    random_start: bool = True
    seed: int = 0
    nearest: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm not in (2.0, float("inf")):
            raise InputError(f"norm={self.norm} is not one of PGD's; use 2 or float('inf')")
        at_least(self, epsilon=0, iterations=1)
        positive(self, "alpha")

    def objective(self, task: Task, state: State, logits: Tensor) -> Tensor:
        return task.odds(logits) if self.maximise == "loss" else task.confidence(logits)

    def begin(self, task: Task) -> State:
        return {"point": task.bounds.clip(task.origin + self.offset(task.origin))} if self.random_start else {}

    def step(self, task: Task, state: State, seen: Seen) -> State:
        alpha = self.alpha if self.alpha is not None else 2.5 * self.epsilon / self.iterations
        ascent = seen.gradient.sign() if self.norm != 2.0 else direction(seen.gradient)
        delta = self.project(state["point"] + alpha * ascent - task.origin)
        return {"point": task.origin + delta}

    def project(self, delta: Tensor) -> Tensor:
        """Return the nearest point of the ball around zero."""
        if self.norm != 2.0:
            return delta.clamp(-self.epsilon, self.epsilon)
        length = norms(delta, 2).clamp_min(torch.finfo(delta.dtype).tiny)
        return delta * spread((self.epsilon / length).clamp_max(1.0), delta)

    def offset(self, like: Tensor) -> Tensor:
        """Draw one point of the ball uniformly, in the shape of an item: [1, …]."""
        rng = torch.Generator().manual_seed(self.seed)
        shape = (1, *like.shape[1:])
        if self.norm != 2.0:
            return (self.epsilon * (2 * torch.rand(shape, generator=rng) - 1)).to(like)
        gaussian = direction(torch.randn(shape, generator=rng))
        radius = torch.rand((), generator=rng) ** (1 / gaussian.numel())
        return (self.epsilon * radius * gaussian).to(like)
