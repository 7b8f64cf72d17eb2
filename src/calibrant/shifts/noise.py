"""Noise: gaussian, shot (Poisson), impulse (salt and pepper), speckle."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from calibrant.shifts.corruption import Corruption
from calibrant.shifts.counter import Draws
from calibrant.shifts.poisson import poisson


class GaussianNoise(Corruption):
    """Normal noise on every value."""

    name: ClassVar[str] = "gaussian_noise"

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return x.add_(numbers.normal(*x.shape[1:]), alpha=self.constant(x, severity))


class SpeckleNoise(Corruption):
    """Normal noise in proportion to the value."""

    name: ClassVar[str] = "speckle_noise"

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return x.mul_(numbers.normal(*x.shape[1:]).mul_(self.constant(x, severity)).add_(1))


class ShotNoise(Corruption):
    """Poisson noise of few photons."""

    name: ClassVar[str] = "shot_noise"

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return poisson(x, self.constant(x, severity), numbers.uniform(*x.shape[1:]))


class ImpulseNoise(Corruption):
    """Salt and pepper: some values become 0 or 1."""

    name: ClassVar[str] = "impulse_noise"

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        share = self.constant(x, severity)
        u = numbers.uniform(*x.shape[1:])
        return torch.where(u < share, (u < share / 2).to(x.dtype), x)
