"""Weather: snow and fog are made of random numbers, as published; the ice of frost is generated."""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.shifts.blur import fft_filter, motion
from calibrant.shifts.colour import grey
from calibrant.shifts.corruption import Corruption, Strengths
from calibrant.shifts.random_numbers import Draws
from calibrant.shifts.separable import clipped_zoom

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


class Snow(Corruption):
    """Flakes blurred along their fall, over a whitened image."""

    name: ClassVar[str] = "snow"
    strengths: ClassVar[Strengths] = {
        32: (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        224: (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    }
    """(mean and deviation of the flakes, their zoom, threshold, radius and deviation of the motion, share of the
    image)."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        mean, deviation, zoom, threshold, radius, sigma, share = self.strength(x, severity)
        layer = flakes(numbers, x.shape[2], x.shape[3], mean, deviation, zoom, threshold)
        return snowfall(x, layer, radius, sigma, numbers.between(-135, -45, stream=1), share)


class Frost(Corruption):
    """Ice on the lens, generated. The published ice is cut from five photographs."""

    name: ClassVar[str] = "frost"
    strengths: ClassVar[Strengths] = {
        32: ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        224: ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    }
    """(share of the image, share of the frost)."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        kept, added = self.strength(x, severity)
        h, w = x.shape[2:]
        ice = ice_pieces(numbers, h, w, 32 if self.small(x) else 224)
        return x.mul_(kept).add_(ice if x.shape[1] == 3 else grey(ice), alpha=added)


class Fog(Corruption):
    """A fractal haze."""

    name: ClassVar[str] = "fog"
    strengths: ClassVar[Strengths] = {
        32: ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        224: ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    }
    """(strength, decay of the fractal's detail)."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        strength, decay = self.strength(x, severity)
        h, w = x.shape[2:]
        brightest = x.amax((1, 2, 3), keepdim=True)
        haze = plasma(numbers, max(h, w), decay)[:, None, :h, :w]
        return x.add_(haze, alpha=strength).mul_(brightest / (brightest + strength))


def flakes(numbers: Draws, h: int, w: int, mean: float, deviation: float, zoom: float, threshold: float) -> Tensor:
    """Bright specks on black, [N, 1, H, W] in steps of a byte."""
    layer = clipped_zoom(numbers.normal(1, h, w).mul_(deviation).add_(mean), zoom)
    return torch.where(layer < threshold, 0.0, layer).clamp_(0, 1).mul_(255.0).floor_().div_(255.0)


def snowfall(x: Tensor, layer: Tensor, radius: int, sigma: float, degrees: Tensor, share: float) -> Tensor:
    """Whiten the image and add the layer twice: blurred along its fall, and the same turned by 180°."""
    fallen = motion(layer, radius, sigma, degrees).mul_(255.0).round_().div_(255.0)
    white = torch.maximum(x, grey(x).mul(1.5).add_(0.5))
    return x.mul(share).add_(white, alpha=1 - share).add_(fallen).add_(fallen.flip(2, 3))


def plasma(numbers: Draws, side: int, decay: float) -> Tensor:
    """Diamond–square fractals [N, M, M] scaled to [0, 1] each; M is the power of two that holds the side.

    As published, the map wraps round, and the noise of a level has the *square* of its nominal amplitude.
    """
    levels = max(side - 1, 1).bit_length()
    noise = numbers.uniform(4**levels - 1).mul_(2).sub_(1)  # a level of s × s squares takes 3 · s · s of them
    corners = torch.zeros(numbers.n, 1, 1, device=noise.device)
    amplitude = 100.0
    for level in range(levels):
        s = 1 << level
        wobble = noise[:, s * s - 1 : 4 * s * s - 1].view(-1, 3, s, s) * amplitude**2
        below, beyond = corners.roll(-1, 1), corners.roll(-1, 2)
        middle = (below.roll(-1, 2) + corners).add_(below).add_(beyond).div_(4).add_(wobble[:, 0])
        above = (middle.roll(1, 1) + middle).add_(corners).add_(beyond).div_(4).add_(wobble[:, 1])
        beside = (middle.roll(1, 2) + middle).add_(corners).add_(below).div_(4).add_(wobble[:, 2])
        height = torch.empty(numbers.n, s, 2, s, 2, device=noise.device)
        height[:, :, 0, :, 0], height[:, :, 0, :, 1] = corners, above
        height[:, :, 1, :, 0], height[:, :, 1, :, 1] = beside, middle
        corners, amplitude = height.view(-1, 2 * s, 2 * s), amplitude / decay
    low, high = corners.amin((1, 2), keepdim=True), corners.amax((1, 2), keepdim=True)
    return corners.sub_(low).div_(high - low)


def ice_pieces(numbers: Draws, h: int, w: int, size: int) -> Tensor:
    """Pieces of ice [N, 3, H, W] in [0, 1].

    For each photograph we measured, on pieces of 32 × 32 (after its reduction to a fifth) and of 224 × 224: the mean
    colour, how far the mean of a piece varies, the deviation of each channel within a piece and its skewness, and the
    size and kurtosis of the differences of neighbouring pixels. A piece of ice is a random field with the power
    spectrum frequency^−slope and these values, in one of the five colours. Only the shapes of the crystals are lost.
    """
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
    from scipy.fft import next_fast_len

    tall, wide = (next_fast_len(n * 5 // 4, real=True) for n in (h, w))
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
