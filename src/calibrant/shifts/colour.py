"""Changes of tone: brightness, contrast, saturation. Brightness and saturation move along axes of HSV.

At constant hue and saturation, a colour is proportional to its value V = max(R, G, B). At constant hue and value,
V − colour is proportional to the saturation S = (V − min) / V. So neither computation needs the hue.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from calibrant.shifts.corruption import Corruption, Strengths
from calibrant.shifts.random_numbers import Draws

LUMA = (0.299, 0.587, 0.114)


class Brightness(Corruption):
    """The value of HSV raised."""

    name: ClassVar[str] = "brightness"
    strengths: ClassVar[Strengths] = {32: (0.05, 0.1, 0.15, 0.2, 0.3), 224: (0.1, 0.2, 0.3, 0.4, 0.5)}
    """Added to the value of HSV."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return brighten(x, self.strength(x, severity))


class Contrast(Corruption):
    """Every channel moved towards its mean."""

    name: ClassVar[str] = "contrast"
    strengths: ClassVar[Strengths] = {32: (0.75, 0.5, 0.4, 0.3, 0.15), 224: (0.4, 0.3, 0.2, 0.1, 0.05)}
    """What is left of the contrast."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        left = self.strength(x, severity)
        return x.mul_(left).add_(x.mean((2, 3), keepdim=True), alpha=(1 - left) / left)


class Saturate(Corruption):
    """The saturation of HSV scaled and raised; grey counts as an unsaturated red, as in the published code."""

    name: ClassVar[str] = "saturate"
    strengths: ClassVar[Strengths] = {
        32: ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        224: ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    }
    """Saturation of HSV: (factor, addend)."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        factor, addend = self.strength(x, severity)
        if x.shape[1] == 1:
            return grey(saturate(x.expand(-1, 3, -1, -1), factor, addend))
        return saturate(x, factor, addend)


def brighten(x: Tensor, by: float) -> Tensor:
    """V ← clip(V + by); black becomes grey."""
    value = x.amax(1, keepdim=True)
    raised = (value + by).clamp_(0, 1)
    return torch.where(value > 0, x * (raised / value), raised)


def saturate(x: Tensor, factor: float, addend: float) -> Tensor:
    """S ← clip(S · factor + addend), for x [N, 3, H, W]."""
    low, value = x.aminmax(dim=1, keepdim=True)
    span = value - low
    saturation = (span / value.clamp(min=1e-12)).mul_(factor).add_(addend).clamp_(0, 1)
    red = torch.tensor([0.0, 1.0, 1.0], device=x.device).view(1, 3, 1, 1)
    direction = torch.where(span > 0, (value - x) / span, red)
    return value - saturation * value * direction


def grey(x: Tensor) -> Tensor:
    """The luma [N, 1, H, W] of RGB images; a single channel is returned unchanged."""
    if x.shape[1] == 1:
        return x
    r, g, b = LUMA
    return x[:, :1] * r + x[:, 1:2] * g + x[:, 2:] * b


def tint(rgb: tuple[int, int, int], x: Tensor) -> Tensor:
    """A colour of bytes in the channels of x: [1, C, 1, 1] in [0, 1]."""
    colour = torch.tensor(rgb, dtype=torch.float32, device=x.device).div_(255).view(1, 3, 1, 1)
    return colour if x.shape[1] == 3 else grey(colour)
