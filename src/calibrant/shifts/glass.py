"""Glass blur: pixels displaced at random within a small reach, between two slight Gaussian blurs.

The published loop is meant to swap pixel (h, w) with a random neighbour, from the lower right corner to the upper left.
But it assigns numpy views, so the second assignment reads what the first has just written: the neighbour is copied to
(h, w) and does not change. The published files are made by such copies, and so are ours.

A copy reads the current value of its source: sources above or left of the pixel are still old, those below or right are
already new. So every pixel ends as one old pixel, found by following sources as long as they lie ahead. Pointer
doubling does this for all pixels of all images at once.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from calibrant.shifts.corruption import SLACK, Corruption, Strengths
from calibrant.shifts.random_numbers import Draws
from calibrant.shifts.separable import gaussian


class GlassBlur(Corruption):
    """Pixels displaced at random, as behind frosted glass."""

    name: ClassVar[str] = "glass_blur"
    strengths: ClassVar[Strengths] = {
        32: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        224: ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    }
    """(standard deviation of the blur, reach of a displacement, rounds)."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        sigma, reach, rounds = self.strength(x, severity)
        n, c, h, w = x.shape
        x = gaussian(x, sigma).mul(255.0).add_(SLACK).floor_().div_(255.0)
        flat = x.view(n, c, h * w)
        for i in range(rounds):
            offset = numbers.integers(-reach, reach, 2, h, w, stream=i)
            source = sources(offset[:, 0], offset[:, 1], reach)
            flat = flat.gather(2, source[:, None].expand(n, c, h * w))
        return gaussian(flat.view(n, c, h, w), sigma)


def sources(right: Tensor, down: Tensor, reach: int) -> Tensor:
    """Which old pixel each pixel ends as, int64 [N, H·W], for offsets [N, H, W] within −reach … reach − 1.

    Rows and columns reach + 1 … side − reach are visited (both ends included); the other pixels stay.
    """
    n, h, w = down.shape
    rows = torch.arange(h, device=down.device)[:, None]
    columns = torch.arange(w, device=down.device)
    visited = ((rows > reach) & (rows <= h - reach) & (columns > reach) & (columns <= w - reach)).expand(n, h, w)
    own = (rows * w + columns).expand(n, h, w)
    source = torch.where(visited, own + down * w + right, own).view(n, h * w)
    if reach == 1:  # offsets are −1 and 0: no source is new
        return source
    own = own.reshape(n, h * w)
    ahead = (source > own) & visited.reshape(n, -1).gather(1, source)
    last = torch.where(ahead, source, own)
    while True:
        further = last.gather(1, last)
        if torch.equal(further, last):
            return source.gather(1, last)
        last = further
