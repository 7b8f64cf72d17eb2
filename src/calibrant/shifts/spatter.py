"""Spatter on the lens: drops of water (severities 1 – 3) or mud (4, 5), where smoothed noise exceeds a threshold."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from calibrant.shifts.colour import tint
from calibrant.shifts.corruption import Corruption
from calibrant.shifts.counter import Draws
from calibrant.shifts.edges import canny, distance, equalised, window
from calibrant.shifts.separable import gaussian

WATER = (175, 238, 238)
MUD = (63, 42, 20)
FARTHEST = 20
BOX = ((1 / 9,) * 3,) * 3
EMBOSS = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))


class Spatter(Corruption):
    """Drops of water or mud on the lens."""

    name: ClassVar[str] = "spatter"

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        mean, deviation, sigma, threshold, strength, mud = self.constant(x, severity)
        liquid = gaussian(numbers.normal(1, *x.shape[2:]).mul_(deviation).add_(mean), sigma)
        if not mud:
            return x + sheen(torch.where(liquid < threshold, 0.0, liquid)).mul_(strength) * tint(WATER, x)
        cover = gaussian((liquid > threshold).float(), strength)
        cover = torch.where(cover < 0.8, 0.0, cover)
        return x * (1 - cover) + cover * tint(MUD, x)


def sheen(liquid: Tensor) -> Tensor:
    """How brightly the drops [N, 1, H, W] shine, up to 1: embossed by their distance from the nearest outline."""
    drops = liquid.clamp(0, 1).mul_(255.0).floor_()
    far = window(distance(canny(drops, 50, 150), FARTHEST), BOX, "reflect")
    relief = equalised(far.add_(1e-4).floor_().clamp_(max=FARTHEST), FARTHEST + 1)
    relief = window(relief, EMBOSS, "reflect").clamp_(0, 255)
    shine = drops * window(relief, BOX, "reflect").round_()
    return shine / shine.amax((2, 3), keepdim=True).clamp(min=1)  # without a drop there is no sheen
