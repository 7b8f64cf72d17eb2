"""Pixelate: made smaller and larger again by Pillow's BOX filter, its rounding to bytes included."""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.shifts.corruption import Corruption
from calibrant.shifts.counter import Draws


class Pixelate(Corruption):
    """Fewer, larger pixels."""

    name: ClassVar[str] = "pixelate"
    nearest: ClassVar[bool] = True

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        share = self.constant(x, severity)
        h, w = x.shape[2:]
        small = max(1, int(h * share)), max(1, int(w * share))
        x = boxed(x.mul_(255.0), small[1]).transpose(2, 3)
        x = boxed(x, small[0]).transpose(2, 3)
        # enlarging by BOX is taking the pixel under the centre
        return x[:, :, under(h, small[0], x.device)][..., under(w, small[1], x.device)].div_(255.0)


def boxed(x: Tensor, size: int) -> Tensor:
    """The last axis averaged to `size` pixels, in whole bytes as Pillow keeps them between its two passes."""
    return (
        (x.reshape(-1, x.shape[-1]) @ box_matrix(x.shape[-1], size, x.device))
        .view(*x.shape[:-1], size)
        .add_(0.5)
        .floor_()
    )


def under(large: int, small: int, device: torch.device) -> Tensor:
    """Which of `small` pixels lies under the centre of each of `large`."""
    return ((torch.arange(large, device=device) + 0.5) * (small / large)).long().clamp_(max=small - 1)


@functools.lru_cache(maxsize=64)
def box_matrix(n: int, size: int, device: torch.device) -> Tensor:
    """float32 [n, size]: a small pixel is the plain mean of the pixels whose centres lie in it."""
    scale = n / size
    middle = (torch.arange(size, dtype=torch.float64) + 0.5) * scale
    pixel = torch.arange(n, dtype=torch.float64)[:, None] + 0.5
    within = ((pixel - middle) / scale > -0.5) & ((pixel - middle) / scale <= 0.5)
    return (within / within.sum(0)).to(torch.float32).to(device)
