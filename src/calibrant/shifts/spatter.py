"""Spatter on the lens: drops of water (severities 1 – 3) or mud (4, 5), where smoothed noise exceeds a threshold.

The sheen of water needs the edges of a grey picture, the distance of every pixel from one, and an equalised histogram:
Canny's detector and histogram equalisation as in OpenCV, which made the published files. The distance is Euclidean;
OpenCV's is its 5 × 5 chamfer approximation (within 2%). All pictures of a batch are processed at once.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.shifts.colour import tint
from calibrant.shifts.corruption import Corruption, Strengths
from calibrant.shifts.random_numbers import Draws
from calibrant.shifts.separable import gaussian

WATER = (175, 238, 238)
MUD = (63, 42, 20)
FARTHEST = 20
FAR = 1e6
TANGENT = 0.41421356  # of 22.5°
BOX = ((1 / 9,) * 3,) * 3
EMBOSS = ((-2.0, -1.0, 0.0), (-1.0, 1.0, 1.0), (0.0, 1.0, 2.0))


class Spatter(Corruption):
    """Drops of water or mud on the lens."""

    name: ClassVar[str] = "spatter"
    strengths: ClassVar[Strengths] = {
        32: (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        224: (
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
    }
    """(mean and deviation of the liquid, its blur, threshold, opacity of water or blur of mud, 0 water or 1 mud)."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        mean, deviation, sigma, threshold, strength, mud = self.strength(x, severity)
        liquid = gaussian(numbers.normal(1, *x.shape[2:]).mul_(deviation).add_(mean), sigma)
        if not mud:
            return x + sheen(torch.where(liquid < threshold, 0.0, liquid)).mul_(strength) * tint(WATER, x)
        cover = gaussian((liquid > threshold).float(), strength)
        cover = torch.where(cover < 0.8, 0.0, cover)
        return x * (1 - cover) + cover * tint(MUD, x)


def sheen(liquid: Tensor) -> Tensor:
    """The brightness of drops [N, 1, H, W], up to 1: embossed by the distance of a pixel from the nearest outline."""
    drops = liquid.clamp(0, 1).mul_(255.0).floor_()
    far = correlate_3x3(distance(canny(drops, 50, 150), FARTHEST), BOX, "reflect")
    relief = equalise(far.add_(1e-4).floor_().clamp_(max=FARTHEST), FARTHEST + 1)
    relief = correlate_3x3(relief, EMBOSS, "reflect").clamp_(0, 255)
    shine = drops * correlate_3x3(relief, BOX, "reflect").round_()
    return shine / shine.amax((2, 3), keepdim=True).clamp(min=1)  # without a drop there is no sheen


def correlate_3x3(x: Tensor, weights: tuple[tuple[float, ...], ...], border: str) -> Tensor:
    """Correlation of x [N, 1, H, W] with a 3 × 3 window. Borders: "replicate", "reflect" (the edge is the mirror)."""
    h, w = x.shape[2:]
    padded = F.pad(x, (1, 1, 1, 1), mode=border)
    total = torch.zeros_like(x)
    for i, row in enumerate(weights):
        for j, weight in enumerate(row):
            if weight:
                total.add_(padded[:, :, i : i + h, j : j + w], alpha=weight)
    return total


def canny(x: Tensor, low: float, high: float) -> Tensor:
    """Edges (bool) of bytes [N, 1, H, W]: ridges of the gradient over `high`, and those over `low` that touch them."""
    h, w = x.shape[2:]
    across = correlate_3x3(x, ((-1, 0, 1), (-2, 0, 2), (-1, 0, 1)), "replicate")
    down = correlate_3x3(x, ((-1, -2, -1), (0, 0, 0), (1, 2, 1)), "replicate")
    steep = across.abs() + down.abs()
    around = F.pad(steep, (1, 1, 1, 1))

    def beside(i: int, j: int) -> Tensor:
        return around[:, :, 1 + i : 1 + i + h, 1 + j : 1 + j + w]

    flat = down.abs() < TANGENT * across.abs()
    upright = down.abs() > (TANGENT + 2) * across.abs()
    falling = across * down >= 0
    slant = torch.where(
        falling,
        (steep > beside(-1, -1)) & (steep > beside(1, 1)),
        (steep > beside(-1, 1)) & (steep > beside(1, -1)),
    )
    ridge = torch.where(upright, (steep > beside(-1, 0)) & (steep >= beside(1, 0)), slant)
    ridge = torch.where(flat, (steep > beside(0, -1)) & (steep >= beside(0, 1)), ridge)
    weak = (ridge & (steep > low)).float()
    edge = weak * (steep > high)
    while True:  # grow along weak ridges until nothing more is added
        grown = F.max_pool2d(edge, 3, 1, 1) * weak
        if torch.equal(grown, edge):
            return edge > 0
        edge = grown


def distance(edge: Tensor, most: int) -> Tensor:
    """Euclidean distance to the nearest edge pixel, at most `most`, for bool [N, 1, H, W]."""
    h, w = edge.shape[2:]
    row = torch.arange(h, device=edge.device, dtype=torch.float32)[:, None]
    above = torch.where(edge, row, -FAR).cummax(2).values
    below = torch.where(edge, row, FAR).flip(2).cummin(2).values.flip(2)
    along = torch.minimum(row - above, below - row).clamp_(max=FAR).square_()
    reach = min(most, w - 1)
    padded = F.pad(along, (reach, reach), value=FAR)
    nearest = along
    for k in range(1, reach + 1):
        sides = torch.minimum(padded[..., reach - k : reach - k + w], padded[..., reach + k : reach + k + w])
        nearest = torch.minimum(nearest, sides.add_(k * k))
    return nearest.sqrt().clamp_(max=most)


def equalise(x: Tensor, levels: int) -> Tensor:
    """Map whole numbers 0 … levels − 1 so that the histogram of each picture is flat over 0 … 255."""
    n = x.shape[0]
    value = x.reshape(n, -1).long()
    count = torch.zeros(n, levels, dtype=torch.int64, device=x.device).scatter_add_(1, value, torch.ones_like(value))
    first = (count > 0).int().argmax(1, keepdim=True)
    rest = value.shape[1] - count.gather(1, first)
    below = (count.cumsum(1) - count.gather(1, first)).clamp_(min=0)
    table = (below * (255 / rest.clamp(min=1).float())).round_()
    table = torch.where(rest > 0, table, torch.arange(levels, device=x.device, dtype=torch.float32))
    return table.gather(1, value).view_as(x)
