"""Noise: gaussian, shot (Poisson), impulse (salt and pepper), speckle.

A Poisson number is made from one uniform number by tables of the inverse distribution function. An image of bytes has
256 expectations. For each, the unit interval is cut into cells (a guide table, Chen & Asau 1974). Most cells hold one
count or two, which one comparison tells apart; in the other cells, the tails, the function itself is searched. A float
image gets the noise of the nearest byte around its own value, so its variance is right to half a byte's step.
"""

from __future__ import annotations

import functools
import math
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.shifts.corruption import Corruption, Strengths
from calibrant.shifts.random_numbers import Draws

CELLS = 512


class GaussianNoise(Corruption):
    """Normal noise on every value."""

    name: ClassVar[str] = "gaussian_noise"
    strengths: ClassVar[Strengths] = {32: (0.04, 0.06, 0.08, 0.09, 0.10), 224: (0.08, 0.12, 0.18, 0.26, 0.38)}
    """Standard deviation of the noise."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return x.add_(numbers.normal(*x.shape[1:]), alpha=self.strength(x, severity))


class SpeckleNoise(Corruption):
    """Normal noise in proportion to the value."""

    name: ClassVar[str] = "speckle_noise"
    strengths: ClassVar[Strengths] = {32: (0.06, 0.1, 0.12, 0.16, 0.2), 224: (0.15, 0.2, 0.35, 0.45, 0.6)}
    """Standard deviation of the noise at white."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return x.mul_(numbers.normal(*x.shape[1:]).mul_(self.strength(x, severity)).add_(1))


class ShotNoise(Corruption):
    """Poisson noise of few photons."""

    name: ClassVar[str] = "shot_noise"
    strengths: ClassVar[Strengths] = {32: (500, 250, 100, 75, 50), 224: (60, 25, 12, 5, 3)}
    """Photons at white."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return poisson(x, self.strength(x, severity), numbers.uniform(*x.shape[1:]))


class ImpulseNoise(Corruption):
    """Salt and pepper: some values become 0 or 1."""

    name: ClassVar[str] = "impulse_noise"
    strengths: ClassVar[Strengths] = {32: (0.01, 0.02, 0.03, 0.05, 0.07), 224: (0.03, 0.06, 0.09, 0.17, 0.27)}
    """Share of values that become 0 or 1."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        share = self.strength(x, severity)
        u = numbers.uniform(*x.shape[1:])
        return torch.where(u < share, (u < share / 2).to(x.dtype), x)


def poisson(x: Tensor, photons: float, u: Tensor) -> Tensor:
    """Poisson(x · photons) / photons for x in [0, 1], by the uniform numbers `u`."""
    first, edge, distribution = poisson_tables(photons, x.device)
    level = (x * 255.0).round_()
    cell = level.mul(CELLS).add_((u * CELLS).floor_()).to(torch.int64)
    count = first.take(cell)
    many = (count < 0).view(-1).nonzero().squeeze(1)
    count += u > edge.take(cell)
    if len(many):
        count.view(-1)[many] = search_counts(
            -1 - first.take(cell.view(-1)[many]), u.reshape(-1)[many], level.reshape(-1)[many], distribution
        )
    return x + count.to(x.dtype).sub_(level.mul_(photons / 255.0)).div_(photons)


def search_counts(count: Tensor, u: Tensor, level: Tensor, distribution: Tensor) -> Tensor:
    """The first count, from `count` on, at which the distribution function reaches u; by bisection."""
    most = distribution.shape[1]
    row, flat = level.to(torch.int64).mul_(most), distribution.view(-1)
    low, high = count.to(torch.int64), torch.full_like(row, most - 1)
    for _ in range(most.bit_length()):
        middle = (low + high) >> 1
        reached = flat.take(row + middle) >= u
        high = torch.where(reached, middle, high)
        low = torch.where(reached, low, middle + 1)
    return high.to(count.dtype)


@functools.lru_cache(maxsize=32)
def poisson_tables(photons: float, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The first count of each cell [256 · CELLS], as −1 − count where the cell holds more than two; the value of the
    distribution function at the first count; and the function itself [256, counts], ending in 1."""
    most = int(photons + 8 * math.sqrt(photons) + 16)
    expectation = torch.arange(256, dtype=torch.float64)[:, None] * (photons / 255.0)
    count = torch.arange(most, dtype=torch.float64)
    mass = torch.exp(torch.xlogy(count, expectation) - expectation - torch.lgamma(count + 1))
    distribution = mass.cumsum(1).to(torch.float32)
    distribution[:, -1] = 1.0
    start = torch.arange(CELLS, dtype=torch.float32).div(CELLS).expand(256, CELLS).contiguous()
    first = torch.searchsorted(distribution, start)
    second = distribution.gather(1, (first + 1).clamp(max=most - 1))
    marked = torch.where(second < start + 1 / CELLS, -1 - first, first).to(torch.int32)
    edge = distribution.gather(1, first)
    return marked.view(-1).to(device), edge.view(-1).to(device), distribution.to(device)
