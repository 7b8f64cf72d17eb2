"""FGSM (Goodfellow 2015; SS Table E.2): one step of the whole budget along the sign of the gradient.

    x' = clip( x + ε · sign ∂/∂x (−log p_r(x)) )

A long step may pass through another class and back into the item's own. With `search`, which is ours, 7/8, 6/8, … of ε
are tried where the whole step does not succeed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.attacks.attack import Attack
from calibrant.attacks.settings import at_least
from calibrant.attacks.task import Seen, State, Task, spread

SHARES = 8


@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    """One signed gradient step of size ε (Goodfellow 2015)."""

    epsilon: float = 8 / 255
    search: bool = False
    norm: ClassVar[float] = float("inf")
    nearest: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, epsilon=0)

    @property
    def steps(self) -> int:
        return SHARES + 1 if self.search else 1

    def perturbation(self, gradient: Tensor) -> Tensor:
        """The whole step."""
        return self.epsilon * gradient.sign()

    def begin(self, task: Task) -> State:
        return {"point": task.origin.clone(), "delta": torch.zeros_like(task.origin)}

    def step(self, task: Task, state: State, seen: Seen) -> State:
        t = state["t"]
        delta = torch.where(spread(t == 0, seen.gradient), self.perturbation(seen.gradient), state["delta"])
        share = torch.where(t < SHARES, 1 - t / SHARES, 1.0).to(delta.dtype)
        found = seen.success & (t > 0)
        point = torch.where(spread(found, delta), state["point"], task.origin + spread(share, delta) * delta)
        return {"point": point, "delta": delta, "done": found}
