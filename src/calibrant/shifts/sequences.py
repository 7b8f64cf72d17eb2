"""Perturbations that keep the image in place: noise, motion blur that turns, snow, brightness, blur, spatter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.shifts.blur import motion
from calibrant.shifts.colour import brighten, tint
from calibrant.shifts.noise import poisson
from calibrant.shifts.perturbation import Perturbation, StepPerturbation
from calibrant.shifts.random_numbers import Draws
from calibrant.shifts.separable import gaussian
from calibrant.shifts.spatter import WATER, sheen
from calibrant.shifts.weather import flakes, snowfall


@dataclass(frozen=True)
class NoiseSequence(Perturbation):
    """The clean image, then fresh noise in every frame; difficulty 1 … 3 as in the published files."""

    difficulty: int = 1
    strengths: ClassVar[tuple[float, float, float]]
    unordered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.difficulty not in (1, 2, 3):
            raise InputError(f"{self.name}: difficulties are 1, 2 and 3, got {self.difficulty}")

    @property
    def level(self) -> int:
        return self.difficulty

    def sequence(self, x: Tensor, frames: int, numbers: Draws) -> Iterator[Tensor]:
        yield x.clone()
        for i in range(1, frames):
            yield self.noisy(x, self.strengths[self.difficulty - 1], numbers, i)

    def noisy(self, x: Tensor, strength: float, numbers: Draws, frame: int) -> Tensor:
        """x plus normal noise of this deviation."""
        return x.add(numbers.normal(*x.shape[1:], stream=frame), alpha=strength)


class GaussianNoiseSequence(NoiseSequence):
    """Fresh normal noise in every frame."""

    name: ClassVar[str] = "gaussian_noise"
    strengths: ClassVar[tuple[float, float, float]] = (0.02, 0.04, 0.06)


class ShotNoiseSequence(NoiseSequence):
    """Fresh Poisson noise in every frame."""

    name: ClassVar[str] = "shot_noise"
    strengths: ClassVar[tuple[float, float, float]] = (700, 400, 200)

    def noisy(self, x: Tensor, strength: float, numbers: Draws, frame: int) -> Tensor:
        return poisson(x, strength, numbers.uniform(*x.shape[1:], stream=frame))


class SpeckleNoiseSequence(NoiseSequence):
    """Fresh noise in proportion to the value in every frame."""

    name: ClassVar[str] = "speckle_noise"
    strengths: ClassVar[tuple[float, float, float]] = (0.05, 0.07, 0.1)

    def noisy(self, x: Tensor, strength: float, numbers: Draws, frame: int) -> Tensor:
        return x * numbers.normal(*x.shape[1:], stream=frame).mul_(strength).add_(1)


class MotionBlurSequence(Perturbation):
    """Motion blur that turns by 9° per frame and ends along the row."""

    name: ClassVar[str] = "motion_blur"
    published: ClassVar[int] = 21
    nearest: ClassVar[bool] = True

    def sequence(self, x: Tensor, frames: int, numbers: Draws) -> Iterator[Tensor]:
        for i in range(frames):
            yield motion(x, 6, 1.8, torch.full((len(x),), (i - frames + 1) * 9.0, device=x.device))


class SnowSequence(Perturbation):
    """The same flakes, whose fall turns by 4° per frame."""

    name: ClassVar[str] = "snow"

    def sequence(self, x: Tensor, frames: int, numbers: Draws) -> Iterator[Tensor]:
        layer = flakes(numbers, x.shape[2], x.shape[3], 0.05, 0.3, 2, 0.5)
        for i in range(frames):
            yield snowfall(x, layer, 10, 2, torch.full((len(x),), i * 4.0 - 150, device=x.device), 0.85)


class BrightnessSequence(StepPerturbation):
    """Brighter by 1.5% per frame, starting darker than the image."""

    name: ClassVar[str] = "brightness"

    def frame(self, x: Tensor, step: int) -> Tensor:
        return brighten(x, step * 0.015)


class GaussianBlurSequence(Perturbation):
    """Gaussian blur that widens by 0.015 pixels per frame."""

    name: ClassVar[str] = "gaussian_blur"

    def sequence(self, x: Tensor, frames: int, numbers: Draws) -> Iterator[Tensor]:
        for i in range(frames):
            yield gaussian(x, 0.3 + 0.015 * i, truncate=7.0).clone()


class SpatterSequence(Perturbation):
    """Drops of water that run down."""

    name: ClassVar[str] = "spatter"

    def sequence(self, x: Tensor, frames: int, numbers: Draws) -> Iterator[Tensor]:
        liquid = gaussian(numbers.normal(1, *x.shape[2:]).mul_(0.265).add_(0.6), 1.75)
        liquid = torch.where(liquid < 0.7, 0.0, liquid)
        for _ in range(frames):
            yield x + sheen(liquid).mul_(0.6) * tint(WATER, x)
            above = torch.nn.functional.pad(liquid[:, :, :-1], (0, 0, 1, 0))
            liquid = liquid * 0.2 + above * 0.8
