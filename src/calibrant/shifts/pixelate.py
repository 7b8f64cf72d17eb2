"""Pixelate: the image reduced and enlarged again with Pillow's BOX filter, including its rounding to bytes."""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.shifts.corruption import Corruption, Strengths
from calibrant.shifts.random_numbers import Draws


class Pixelate(Corruption):
    """Fewer, larger pixels."""

    name: ClassVar[str] = "pixelate"
    bytewise: ClassVar[bool] = True
    strengths: ClassVar[Strengths] = {32: (0.95, 0.9, 0.85, 0.75, 0.65), 224: (0.6, 0.5, 0.4, 0.3, 0.25)}
    """Side of the small image as a share."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        share = self.strength(x, severity)
        h, w = x.shape[2:]
        small = max(1, int(h * share)), max(1, int(w * share))
        # like Pillow, average along the rows first; rows that are contiguous in memory are faster to add
        x = box_mean(x.transpose(2, 3).contiguous(), small[1])
        x = box_mean(x.transpose(2, 3).contiguous(), small[0])
        # enlarging by BOX takes the pixel under the centre; rows come last, because they are copied as a whole
        return x.index_select(3, pixel_under_centre(w, small[1], x.device)).index_select(
            2, pixel_under_centre(h, small[0], x.device)
        )


def box_mean(x: Tensor, size: int) -> Tensor:
    """The rows averaged to `size` of them, in whole bytes as Pillow keeps them between its two passes."""
    first, weights = box(x.shape[2], size, x.device)
    total = x.index_select(2, first) * weights[0]
    for i in range(1, len(weights)):
        total.addcmul_(x.index_select(2, (first + i).clamp_(max=x.shape[2] - 1)), weights[i])
    return total.add_(0.5).floor_()


def pixel_under_centre(large: int, small: int, device: torch.device) -> Tensor:
    """For each of `large` pixels, the one of `small` pixels that lies under its centre."""
    return ((torch.arange(large, device=device) + 0.5) * (small / large)).long().clamp_(max=small - 1)


@functools.lru_cache(maxsize=64)
def box(n: int, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """A small pixel is the plain mean of the pixels whose centres lie in it: the first of them [size], and the weights
    of the first, the next … [taps, size, 1]."""
    scale = n / size
    middle = (torch.arange(size, dtype=torch.float64) + 0.5) * scale
    pixel = torch.arange(n, dtype=torch.float64)[:, None] + 0.5
    within = ((pixel - middle) / scale > -0.5) & ((pixel - middle) / scale <= 0.5)
    count, first = within.sum(0), within.double().argmax(0)
    weights = (torch.arange(int(count.max()))[:, None] < count) / count
    return first.to(device), weights.float().unsqueeze(-1).to(device)
