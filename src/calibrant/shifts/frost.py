"""Frost: share · image + share' · ice, with ice made here where the published files cut pieces from five photographs.

Of each photograph this was measured on pieces of 32 × 32 (after its reduction to a fifth) and of 224 × 224: the mean
colour, how far a piece's mean varies, the deviation of each channel within a piece, its skewness, and the slope of the
power spectrum. A piece of ice is a random field with that spectrum and these moments, in one of the five colours.
What is lost is the drawing of the crystals: the phases are random.
"""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.shifts.blur import fast_length
from calibrant.shifts.colour import grey
from calibrant.shifts.corruption import Corruption
from calibrant.shifts.counter import Draws

# mean of R, G, B; deviation within a piece of R, G, B; deviation of a piece's mean for 32 and for 224; skewness
PANES = (
    ((0.302, 0.580, 0.645), (0.090, 0.054, 0.052), (0.044, 0.038), 0.4),
    ((0.778, 0.795, 0.831), (0.073, 0.075, 0.078), (0.033, 0.025), -1.0),
    ((0.777, 0.794, 0.830), (0.073, 0.075, 0.078), (0.035, 0.024), -1.0),
    ((0.565, 0.624, 0.674), (0.102, 0.102, 0.107), (0.040, 0.025), -0.15),
    ((0.400, 0.445, 0.491), (0.141, 0.140, 0.137), (0.063, 0.047), 0.4),
)
SLOPE = {32: 1.0, 224: 1.6}
"""The power of a piece falls as frequency^−slope; flatter at 32: the photographs were reduced by skipping pixels."""


class Frost(Corruption):
    """Ice on the lens, generated."""

    name: ClassVar[str] = "frost"

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        kept, added = self.constant(x, severity)
        h, w = x.shape[2:]
        ice = panes(numbers, h, w, 32 if self.small(x) else 224)
        return x.mul_(kept).add_(ice if x.shape[1] == 3 else grey(ice), alpha=added)


def panes(numbers: Draws, h: int, w: int, size: int) -> Tensor:
    """Pieces of ice [N, 3, H, W] in [0, 1]."""
    device = numbers.key.device
    chosen = numbers.integers(0, len(PANES), stream=0)
    table = torch.tensor([[*mean, *inner, outer[size == 224], skew] for mean, inner, outer, skew in PANES])
    mean, inner, outer, skew = torch.split(table.to(device)[chosen], [3, 3, 1, 1], dim=1)
    field = crystals(numbers, h, w, SLOPE[size])
    bend = (skew / 6)[:, :, None, None]
    field = (field + bend * (field.square() - 1)) / (1 + 2 * bend.square()).sqrt()
    level = mean + outer * numbers.normal(1, stream=2)
    ice: Tensor = (level[:, :, None, None] + inner[:, :, None, None] * field).clamp_(0, 1)
    return ice


def crystals(numbers: Draws, h: int, w: int, slope: float) -> Tensor:
    """Normal fields [N, 1, H, W] of mean 0 and variance 1 whose power falls as frequency^−slope."""
    tall, wide = fast_length(h), fast_length(w)
    noise = numbers.normal(1, tall, wide, stream=1)
    spectrum = torch.fft.rfft2(noise) * amplitudes(tall, wide, slope, noise.device)
    field: Tensor = torch.fft.irfft2(spectrum, s=(tall, wide))
    return field[..., :h, :w]


@functools.lru_cache(maxsize=16)
def amplitudes(h: int, w: int, slope: float, device: torch.device) -> Tensor:
    """Per frequency, scaled so that white noise of variance 1 keeps it; none at frequency 0."""
    rows, columns = torch.fft.fftfreq(h, dtype=torch.float64)[:, None], torch.fft.fftfreq(w, dtype=torch.float64)
    amplitude: Tensor = (rows**2 + columns**2).pow(-slope / 4)
    amplitude[0, 0] = 0
    amplitude /= amplitude.square().mean().sqrt()
    return amplitude[:, : w // 2 + 1].float().to(device)
