"""Frost: share · image + share' · ice. The ice is generated; the published files cut pieces from five photographs.

For each photograph we measured, on pieces of 32 × 32 (after its reduction to a fifth) and of 224 × 224: the mean
colour, how far the mean of a piece varies, the deviation of each channel within a piece and its skewness, and the size
and kurtosis of the differences of neighbouring pixels. A piece of ice is a random field with the power spectrum
frequency^−slope and these values, in one of the five colours. Only the shapes of the crystals are lost.
"""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.shifts.blur import fast_length, fft_filter
from calibrant.shifts.colour import grey
from calibrant.shifts.corruption import Corruption, Strengths
from calibrant.shifts.random_numbers import Draws

# mean of R, G, B; deviation within a piece of R, G, B; for 32 and 224: deviation of a piece's mean, and the slope
# (flatter at 32: the photographs were reduced by skipping pixels); skewness
PANES = (
    ((0.302, 0.580, 0.645), (0.090, 0.054, 0.052), (0.044, 0.038), (1.9, 2.05), 0.4),
    ((0.778, 0.795, 0.831), (0.073, 0.075, 0.078), (0.033, 0.025), (1.25, 2.05), -1.0),
    ((0.777, 0.794, 0.830), (0.073, 0.075, 0.078), (0.035, 0.024), (1.25, 2.05), -1.0),
    ((0.565, 0.624, 0.674), (0.102, 0.102, 0.107), (0.040, 0.025), (0.65, 1.8), -0.15),
    ((0.400, 0.445, 0.491), (0.141, 0.140, 0.137), (0.063, 0.047), (1.2, 1.85), 0.4),
)

PATCHES = 0.4
"""Deviation of the logarithm of the roughness from place to place."""


class Frost(Corruption):
    """Ice on the lens, generated."""

    name: ClassVar[str] = "frost"
    strengths: ClassVar[Strengths] = {
        32: ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        224: ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    }
    """(share of the image, share of the frost)."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        kept, added = self.strength(x, severity)
        h, w = x.shape[2:]
        ice = panes(numbers, h, w, 32 if self.small(x) else 224)
        return x.mul_(kept).add_(ice if x.shape[1] == 3 else grey(ice), alpha=added)


def panes(numbers: Draws, h: int, w: int, size: int) -> Tensor:
    """Pieces of ice [N, 3, H, W] in [0, 1]."""
    device = numbers.key.device
    chosen = numbers.integers(0, len(PANES), stream=0)
    large = int(size == 224)
    table = torch.tensor([[*mean, *inner, outer[large], skew] for mean, inner, outer, _, skew in PANES])
    mean, inner, outer, skew = torch.split(table.to(device)[chosen], [3, 3, 1, 1], dim=1)
    field = crystals(numbers, h, w, tuple(pane[3][large] for pane in PANES), chosen)
    bend = (skew / 6)[:, :, None, None]
    field = (field + bend * (field.square() - 1)) / (1 + 2 * bend.square()).sqrt()
    level = mean + outer * numbers.normal(1, stream=2)
    ice: Tensor = (level[:, :, None, None] + inner[:, :, None, None] * field).clamp_(0, 1)
    return ice


def crystals(numbers: Draws, h: int, w: int, slopes: tuple[float, ...], chosen: Tensor) -> Tensor:
    """Fields [N, 1, H, W] of mean 0 and variance about 1, each with its chosen one of the slopes.

    They are cut from larger fields, so that they contain waves longer than the image, and are rough in places and
    smooth in others, as the photographs are: an evenly rough Gaussian field would cost a classifier more accuracy.
    """
    tall, wide = fast_length(h * 5 // 4), fast_length(w * 5 // 4)
    noise = numbers.normal(1, tall, wide, stream=1)
    factor = amplitudes(tall, wide, slopes, noise.device)[chosen][:, None]
    field = fft_filter(noise, factor, [tall, wide])[..., :h, :w]
    coarse = numbers.normal(1, 6, 6, stream=3).mul_(PATCHES)
    field = field * F.interpolate(coarse, size=(h, w), mode="bilinear", align_corners=True).exp_()
    field = field - field.mean((2, 3), keepdim=True)
    return field / field.square().mean((2, 3), keepdim=True).sqrt()


@functools.lru_cache(maxsize=16)
def amplitudes(h: int, w: int, slopes: tuple[float, ...], device: torch.device) -> Tensor:
    """The amplitude for each slope and frequency, [slopes, H, W // 2 + 1]; 0 at frequency 0."""
    rows, columns = torch.fft.fftfreq(h, dtype=torch.float64)[:, None], torch.fft.rfftfreq(w, dtype=torch.float64)
    power = (rows**2 + columns**2).expand(len(slopes), h, w // 2 + 1).clone()
    power[:, 0, 0] = float("inf")
    amplitude = torch.pow(power, (-torch.tensor(slopes, dtype=torch.float64) / 4)[:, None, None])
    return amplitude.float().to(device)
