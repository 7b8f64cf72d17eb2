"""Perturbations that move the image: translate, rotate, tilt, scale, shear, and zoom blur. New pixels are black.

The published files were made by torchvision's `affine` on Pillow images and by OpenCV's `warpPerspective`. Pillow reads
the image linearly at the centre of each new pixel, repeats the border up to its edge, and is black beyond. OpenCV fades
to black over one pixel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.shifts.elastic import pixel_places, sample_at
from calibrant.shifts.perturbation import Perturbation, StepPerturbation
from calibrant.shifts.random_numbers import Draws


class Translate(StepPerturbation):
    """Moved along the row by one pixel per frame."""

    name: ClassVar[str] = "translate"
    published: ClassVar[int] = 16

    def frame(self, x: Tensor, step: int) -> Tensor:
        return move_right(x, step)


class Rotate(StepPerturbation):
    """Turned by one degree per frame."""

    name: ClassVar[str] = "rotate"

    def frame(self, x: Tensor, step: int) -> Tensor:
        return affine(x, degrees=step)


class Scale(StepPerturbation):
    """Scaled by a fiftieth per frame."""

    name: ClassVar[str] = "scale"

    def frame(self, x: Tensor, step: int) -> Tensor:
        return affine(x, scale=1 + 0.02 * step)


class Shear(StepPerturbation):
    """Sheared by one degree per frame."""

    name: ClassVar[str] = "shear"

    def frame(self, x: Tensor, step: int) -> Tensor:
        return affine(x, shear=step)


class Tilt(StepPerturbation):
    """Tilted in perspective about both axes, three quarters of a degree per frame."""

    name: ClassVar[str] = "tilt"
    nearest: ClassVar[bool] = True

    def frame(self, x: Tensor, step: int) -> Tensor:
        return tilt(x, 0.75 * step)


class ZoomBlurSequence(Perturbation):
    """Running mean of images that grow by 1 / 250 per frame."""

    name: ClassVar[str] = "zoom_blur"

    def sequence(self, x: Tensor, frames: int, numbers: Draws) -> Iterator[Tensor]:
        total = x.clone()
        yield x.clone()
        for i in range(1, frames):
            total += affine(x, scale=1 + 0.004 * i)
            yield total / (i + 1)


def move_right(x: Tensor, right: int) -> Tensor:
    """Moved by whole pixels."""
    w = x.shape[-1]
    by = max(-w, min(w, right))
    if by == 0:
        return x.clone()
    return F.pad(x[..., max(0, -by) : w - max(0, by)], (max(0, by), max(0, -by)))


def affine(x: Tensor, degrees: float = 0.0, scale: float = 1.0, shear: float = 0.0) -> Tensor:
    """Turned, scaled and sheared about the pixel (w / 2, h / 2), as torchvision did in 2018 (now half a pixel off).

    Bytes are rounded down, as Pillow does; a small addend keeps float32 from losing one.
    """
    h, w = x.shape[2:]
    turn, slant = math.radians(degrees), math.radians(shear)
    # torchvision's inverse of R(turn) · Shear · scale
    d = (math.cos(turn + slant) * math.cos(turn) + math.sin(turn + slant) * math.sin(turn)) * scale
    back = torch.tensor(
        [[math.cos(turn + slant) / d, math.sin(turn + slant) / d], [-math.sin(turn) / d, math.cos(turn) / d]],
        device=x.device,
        dtype=torch.float64,
    )
    middle = torch.tensor([w / 2 + 0.5, h / 2 + 0.5], dtype=torch.float64, device=x.device)
    centre = pixel_places(h, w, x.device).double() + 0.5
    place = (centre - middle) @ back.T + middle
    size = torch.tensor([w, h], dtype=torch.float64, device=x.device)
    within = ((place >= 0) & (place < size)).all(-1)
    grid = (place * 2 / size - 1).float().expand(x.shape[0], h, w, 2)
    seen = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    return (seen * within).mul_(255.0).add_(1e-3).floor_().div_(255.0)


def tilt(x: Tensor, degrees: float) -> Tensor:
    """The image after turning about both axes, seen by a camera at a distance of the image's diagonal."""
    h, w = x.shape[2:]
    a = math.radians(degrees)
    c, s, f = math.cos(a), math.sin(a), math.hypot(h, w)
    flat = torch.tensor([[1, 0, -w / 2], [0, 1, -h / 2], [0, 0, 1], [0, 0, 1]], dtype=torch.float64)
    about_x = torch.tensor([[1, 0, 0, 0], [0, c, -s, 0], [0, s, c, 0], [0, 0, 0, 1]], dtype=torch.float64)
    about_y = torch.tensor([[c, 0, -s, 0], [0, 1, 0, 0], [s, 0, c, 0], [0, 0, 0, 1]], dtype=torch.float64)
    away = torch.eye(4, dtype=torch.float64)
    away[2, 3] = f
    seen = torch.tensor([[f, 0, w / 2, 0], [0, f, h / 2, 0], [0, 0, 1, 0]], dtype=torch.float64)
    back = torch.linalg.inv(seen @ away @ about_x @ about_y @ flat).to(x.device)
    ahead = F.pad(pixel_places(h, w, x.device).double(), (0, 1), value=1.0) @ back.T
    place = (ahead[..., :2] / ahead[..., 2:]).float()
    return sample_at(x, place.expand(x.shape[0], h, w, 2), "black")
