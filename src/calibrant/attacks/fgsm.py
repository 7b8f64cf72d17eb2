"""FGSM (Goodfellow 2015; SS Table E.2): one step of the whole budget along the sign of the gradient.

    x' = clip( x + ε · sign ∂/∂x (−log p_r(x)) )

A long step may pass through another class and back into the item's own class. Then it is no success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from calibrant.attacks.attack import Attack
from calibrant.attacks.task import Seen, State, Task
from calibrant.functional.settings import at_least


@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    """One signed gradient step of size ε (Goodfellow 2015)."""

    epsilon: float = 8 / 255
    norm: ClassVar[float] = float("inf")
    nearest: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, epsilon=0)

    def perturbation(self, gradient: Tensor) -> Tensor:
        """Return the whole step: [N, …]."""
        return self.epsilon * gradient.sign()

    def step(self, task: Task, state: State, seen: Seen) -> State:
        return {"point": task.origin + self.perturbation(seen.gradient)}
