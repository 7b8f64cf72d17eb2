"""Sequences of slightly changed images (CIFAR-10-P, Hendrycks & Dietterich 2019): (x, frames, rng) → [T, N, C, H, W].

One `__call__` does the checks, range, dtype and randomness, as in `corruption`; a perturbation defines the `sequence`.
Step sizes are those of `make_cifar_p.py` for 32 × 32, in pixels and degrees, at every size. `frames` is the published
number by default; with another number, the step and the middle stay the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.shifts.corruption import as_dtype_of, check_images, full_precision, to_floats
from calibrant.shifts.random_numbers import Draws, draws


@dataclass(frozen=True)
class Perturbation(ABC):
    """(x, frames, rng) → [T, N, C, H, W], in the dtype and range of x."""

    name: ClassVar[str]
    published: ClassVar[int] = 31
    nearest: ClassVar[bool] = False
    unordered: ClassVar[bool] = False
    """Frames of noise have no order: the flip rate compares them with the first, the clean image."""

    def __call__(
        self, x: Tensor, frames: int | None, rng: torch.Generator | int, *, index: Tensor | int | None = None
    ) -> Tensor:
        """Images [N, C, H, W], uint8 or floating in [0, 1]. Randomness is per item, numbered by `index`."""
        check_images(x)
        count = self.published if frames is None else frames
        if not isinstance(count, Integral) or count < 2:
            raise InputError(f"a sequence needs at least two frames, got {frames}")
        out = torch.empty(count, *x.shape, dtype=x.dtype, device=x.device)
        if x.shape[0] == 0:
            return out
        numbers = draws(rng, f"{self.name} sequence", self.level, x.shape[0], x.device, index)
        with full_precision(x.device):
            for i, made in zip(range(count), self.sequence(to_floats(x), count, numbers), strict=False):
                out[i] = as_dtype_of(made, x, self.nearest)
        return out

    @property
    def level(self) -> int:
        """A number that differs between the difficulties of a perturbation, so that their noise differs."""
        return 1

    @abstractmethod
    def sequence(self, x: Tensor, frames: int, numbers: Draws) -> Iterator[Tensor]:
        """float32 frames of float32 images in [0, 1]; each is clipped, in place, after it is yielded."""


class StepPerturbation(Perturbation):
    """Abstract: a change in whole steps, with step 0 in the middle of the sequence. Write `frame`."""

    def sequence(self, x: Tensor, frames: int, numbers: Draws) -> Iterator[Tensor]:
        for i in range(frames):
            yield self.frame(x, i - (frames - 1) // 2)

    @abstractmethod
    def frame(self, x: Tensor, step: int) -> Tensor:
        """The images, changed by this many steps."""
