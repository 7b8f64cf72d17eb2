"""FGSM of one band of frequencies (SS App. E): which frequencies an attack needs.

    x' = clip( x + F⁻¹( F(ε · sign g) ⊙ M_f ) )

F is the Fourier transform over height and width, M_f the mask of SS §2.2: a square ring around the frequency, in units
of π a pixel. SS gives no budget. A narrow ring holds little of the perturbation, as in SS; with `l2` the perturbation
has this norm after the mask instead, so that frequencies are compared at equal power.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from calibrant.attacks.attack import Attack
from calibrant.attacks.task import Seen, State, Task, direction
from calibrant.errors import InputError
from calibrant.functional.band import band_pass


@dataclass(frozen=True, kw_only=True)
class FrequencyFGSM(Attack):
    """FGSM through a mask of spatial frequencies (SS appendix E)."""

    epsilon: float = 8 / 255
    frequency: float = 0.5
    width: float = 0.1
    l2: float | None = None
    search: bool = False  # type: ignore[misc]  # smaller budgets too, as in FGSM
    nearest: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.epsilon >= 0 or (self.l2 is not None and not self.l2 >= 0):
            raise InputError(f"epsilon={self.epsilon} and l2={self.l2} must not be negative")
        if not 0 <= self.frequency <= 1 or not self.width > 0:
            raise InputError(f"frequency in 0 … 1 (units of π) and width > 0, got {self.frequency}, {self.width}")

    @property
    def steps(self) -> int:
        return 1

    def begin(self, task: Task) -> State:
        if task.origin.ndim != 4:
            raise InputError(f"frequencies are of images [N, C, H, W], not {tuple(task.origin.shape)}; use fgsm")
        return {"point": task.origin.clone(), "done": task.reference < 0}

    def step(self, task: Task, state: State, seen: Seen) -> State:
        delta = band_pass(self.epsilon * seen.gradient.sign(), self.frequency, self.width)
        if self.l2 is not None:
            delta = self.l2 * direction(delta)
        return {"point": task.origin + delta, "done": ~state["done"]}
