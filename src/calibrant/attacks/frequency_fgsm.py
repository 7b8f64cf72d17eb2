"""FGSM in one band of frequencies (SS App. E), which shows the frequencies that an attack needs.

    x' = clip( x + F⁻¹( F(ε · sign g) ⊙ M_f ) )

F is the Fourier transform over height and width, M_f the mask of SS §2.2: a square ring around the frequency, in units
of π per pixel. SS gives no budget. As in SS, a narrow ring holds little of the perturbation. `l2` sets the norm of the
perturbation after the mask, so that frequencies can be compared at equal power.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from calibrant.attacks.fgsm import FGSM
from calibrant.attacks.task import State, Task, direction
from calibrant.errors import InputError
from calibrant.functional.frequency_band import band_pass
from calibrant.functional.settings import at_least


@dataclass(frozen=True, kw_only=True)
class FrequencyFGSM(FGSM):
    """FGSM through a mask of spatial frequencies (SS appendix E)."""

    frequency: float = 0.5
    width: float = 0.1
    l2: float | None = None
    norm: ClassVar[float] = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, l2=0)
        if not 0 <= self.frequency <= 1 or not self.width > 0:
            raise InputError(
                f"frequency must be in 0 … 1 (units of π) and width above 0, got {self.frequency}, {self.width}"
            )

    def perturbation(self, gradient: Tensor) -> Tensor:
        delta = band_pass(super().perturbation(gradient), self.frequency, self.width)
        return delta if self.l2 is None else self.l2 * direction(delta)

    def begin(self, task: Task) -> State:
        if task.origin.ndim != 4:
            raise InputError(f"frequencies are of images [N, C, H, W], not {tuple(task.origin.shape)}; use fgsm")
        return super().begin(task)
