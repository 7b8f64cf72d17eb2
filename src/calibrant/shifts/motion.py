"""Motion blur: every pixel is the mean of those along a line that starts in it, with half-Gaussian weights.

As ImageMagick's `MotionBlurImage`, which made the published files: 2 · radius + 1 taps exp(−i² / 2σ²), tap i at the
pixel nearest to i steps along the angle, the border's pixels repeated.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.shifts.corruption import Corruption
from calibrant.shifts.counter import Draws

NEGLIGIBLE = 1e-5
"""Taps below this share of the whole change no byte."""


class MotionBlur(Corruption):
    """Blur along a line at a random angle within 45° of the horizontal."""

    name: ClassVar[str] = "motion_blur"
    nearest: ClassVar[bool] = True

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        radius, sigma = self.constant(x, severity)
        return motion(x, radius, sigma, numbers.between(-45, 45))


def motion(x: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """x [N, C, H, W] blurred along its own angle, one for each image [N]."""
    n, c, h, w = x.shape
    weights = torch.exp(-0.5 / sigma**2 * torch.arange(2 * radius + 1, dtype=torch.float64) ** 2)
    weights /= weights.sum()
    weights = weights[: int((weights > NEGLIGIBLE).sum())]
    angle = degrees.double() * (math.pi / 180)
    step = torch.arange(len(weights), device=x.device)
    down = (step * angle.sin()[:, None] - 0.5).ceil().long()  # [N, taps]
    right = (step * angle.cos()[:, None] - 0.5).ceil().long()
    rows, columns = torch.arange(h, device=x.device), torch.arange(w, device=x.device)
    flat = x.reshape(n, c, h * w)
    total = x * float(weights[0])
    for i in range(1, len(weights)):
        at_row = (rows + down[:, i, None]).clamp_(0, h - 1).mul_(w)
        at_column = (columns + right[:, i, None]).clamp_(0, w - 1)
        place = (at_row[:, :, None] + at_column[:, None, :]).view(n, 1, h * w).expand(n, c, h * w)
        total.view(n, c, -1).add_(flat.gather(2, place), alpha=float(weights[i]))
    return total.div_(float(weights.sum()))
