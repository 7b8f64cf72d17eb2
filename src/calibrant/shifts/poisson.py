"""Poisson noise from one uniform number a value: the inverse of the distribution function, by tables.

An image of bytes has 256 expectations. For each the distribution function is tabulated, and beside it a guide (Chen &
Asau 1974): the answer for 512 uniform numbers, from which the exact one is a step away, if any. A float image gets the
nearest byte's noise around its own value, so its variance is right to half a byte's step.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

GUIDE = 512


def poisson(x: Tensor, photons: float, u: Tensor) -> Tensor:
    """Poisson(x · photons) / photons for x in [0, 1], by the uniform numbers `u`."""
    distribution, guide = tables(photons, x.device)
    level = (x * 255.0).round_()
    row = level.to(torch.int64)
    count = guide.take(row * GUIDE + (u * GUIDE).to(torch.int64))
    row *= distribution.shape[1]
    flat = distribution.view(-1)
    behind = (u > flat.take(row + count)).view(-1).nonzero().squeeze(1)
    while len(behind):  # few: a guide's cell holds less than one step except in the tails
        count.view(-1)[behind] += 1
        ahead = u.view(-1)[behind] > flat.take(row.view(-1)[behind] + count.view(-1)[behind])
        behind = behind[ahead]
    noise = count.to(x.dtype).sub_(level.mul_(photons / 255.0)).div_(photons)
    return x + noise


@functools.lru_cache(maxsize=32)
def tables(photons: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Distribution functions float32 [256, counts], ending in 1, and the guide int64 [256, GUIDE]."""
    most = int(photons + 8 * math.sqrt(photons) + 16)
    expectation = torch.arange(256, dtype=torch.float64) * (photons / 255.0)
    count = torch.arange(most, dtype=torch.float64)
    exact = torch.special.gammaincc(count + 1, expectation[:, None])  # P(X ≤ k) = Q(k + 1, λ)
    exact[:, -1] = 1.0
    distribution = exact.to(torch.float32)
    start = torch.arange(GUIDE, dtype=torch.float32) / GUIDE
    guide = torch.searchsorted(distribution, start.expand(256, GUIDE).contiguous())
    return distribution.to(device), guide.to(device)
