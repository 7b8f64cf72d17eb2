"""FGSM (Goodfellow 2015; SS Table E.2): one step of the whole budget along the sign of the gradient.

x' = clip( x + ε · sign ∂/∂x (−log p_r(x)) )

With `search`, which is ours: where that is no success, eighths of ε are tried, the longest first (`attack.EIGHTHS`), so
that a larger budget does not lose what a smaller one reaches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from calibrant.attacks.attack import Attack
from calibrant.attacks.task import Seen, State, Task
from calibrant.errors import InputError


@dataclass(frozen=True, kw_only=True)
class FGSM(Attack):
    """One signed gradient step of size ε (Goodfellow 2015)."""

    epsilon: float = 8 / 255
    search: bool = False  # type: ignore[misc]  # a setting here, a constant elsewhere
    norm: ClassVar[float] = float("inf")
    nearest: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon < 0:
            raise InputError(f"epsilon={self.epsilon} must be 0 or more")

    @property
    def steps(self) -> int:
        return 1

    def shorter(self, delta: Tensor, share: float) -> Tensor:
        """Exactly the step of the smaller ε, also where the bounds stop a pixel."""
        return delta.clamp(-share * self.epsilon, share * self.epsilon)

    def begin(self, task: Task) -> State:
        return {"point": task.origin.clone(), "done": task.reference < 0}

    def step(self, task: Task, state: State, seen: Seen) -> State:
        return {"point": task.origin + self.epsilon * seen.gradient.sign(), "done": ~state["done"]}
