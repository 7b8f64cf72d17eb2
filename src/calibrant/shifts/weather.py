"""Weather: snow and fog, whose layers are made of random numbers, as published."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from calibrant.shifts.blur import motion
from calibrant.shifts.colour import grey
from calibrant.shifts.corruption import Corruption, Strengths
from calibrant.shifts.random_numbers import Draws
from calibrant.shifts.separable import clipped_zoom


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
    """The image whitened, and the layer twice: blurred along its fall, and turned by 180°."""
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
