"""JPEG compression, written and read again, on the device: everything of the format that loses something.

As libjpeg does by default, and so Pillow: YCbCr in bytes, colour at half the resolution, 8 × 8 cosine transforms
divided by the standard tables (ITU T.81, Annex K) scaled by the quality, rounded; then back, colour enlarged by a
triangle filter ("fancy upsampling"). Entropy coding loses nothing and is left out. Floats are kept to whole numbers
where libjpeg has integers; its transforms are integer approximations, so a pixel may differ where a coefficient lies on
the edge.
"""

from __future__ import annotations

import functools
import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.shifts.corruption import Corruption
from calibrant.shifts.counter import Draws

LUMINANCE = (
    16, 11, 10, 16, 24, 40, 51, 61,
    12, 12, 14, 19, 26, 58, 60, 55,
    14, 13, 16, 24, 40, 57, 69, 56,
    14, 17, 22, 29, 51, 87, 80, 62,
    18, 22, 37, 56, 68, 109, 103, 77,
    24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101,
    72, 92, 95, 98, 112, 100, 103, 99,
)  # fmt: skip

CHROMINANCE = (
    17, 18, 24, 47, 99, 99, 99, 99,
    18, 21, 26, 66, 99, 99, 99, 99,
    24, 26, 56, 99, 99, 99, 99, 99,
    47, 66, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99,
)  # fmt: skip


class JpegCompression(Corruption):
    """JPEG at low quality, colour at half the resolution."""

    name: ClassVar[str] = "jpeg_compression"
    bytewise: ClassVar[bool] = True

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return jpeg(x.round_(), self.constant(x, severity))


def jpeg(x: Tensor, quality: int) -> Tensor:
    """Bytes as floats [N, 1 or 3, H, W] → the same after compression."""
    if x.shape[1] == 1:
        return coded(x, quality, LUMINANCE)
    h, w = x.shape[2:]
    y, cb, cr = to_ycc(x)
    colour = coded(halved(torch.cat((cb, cr), dim=1)), quality, CHROMINANCE)
    return to_rgb(coded(y, quality, LUMINANCE), doubled(colour)[:, :, :h, :w])


def to_ycc(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """JFIF's YCbCr in whole bytes."""
    r, g, b = torch.split(x, 1, dim=1)
    y = (r * 0.299).add_(g, alpha=0.587).add_(b, alpha=0.114).round_()
    cb = (b * 0.5).sub_(r, alpha=0.168735892).sub_(g, alpha=0.331264108).add_(128).round_()
    cr = (r * 0.5).sub_(g, alpha=0.418687589).sub_(b, alpha=0.081312411).add_(128).round_()
    return y, cb, cr


def to_rgb(y: Tensor, colour: Tensor) -> Tensor:
    """Whole bytes; libjpeg rounds the red and blue terms by themselves."""
    cb, cr = torch.split(colour.sub(128), 1, dim=1)
    red, blue = (cr * 1.402).round_(), (cb * 1.772).round_()
    green = (cb * -0.344136286).sub_(cr, alpha=0.714136286).add_(0.5).floor_()
    return torch.cat((red, green, blue), dim=1).add_(y).clamp_(0, 255)


def halved(x: Tensor) -> Tensor:
    """Means of 2 × 2 pixels; halves are rounded down and up in turn along a row (libjpeg's bias of 1, 2, 1, 2 …)."""
    h, w = x.shape[2:]
    x = F.pad(x, (0, w % 2, 0, h % 2), mode="replicate") if h % 2 or w % 2 else x
    pairs = x[:, :, ::2] + x[:, :, 1::2]
    total = pairs[..., ::2] + pairs[..., 1::2]
    bias = torch.tensor([1.0, 2.0], device=x.device).repeat(total.shape[3] // 2 + 1)[: total.shape[3]]
    return total.add_(bias).mul_(0.25).floor_()


def doubled(x: Tensor) -> Tensor:
    """Triangle filter: 3/4 of the nearer and 1/4 of the farther pixel along each axis, border repeated.

    That is bilinear interpolation, in exact sixteenths; libjpeg adds 8 and 7 of them in turn before it cuts down.
    """
    wide = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
    return wide.add_(torch.tensor([8 / 16, 7 / 16], device=x.device).repeat(x.shape[3])).floor_()


def coded(x: Tensor, quality: int, table: tuple[int, ...]) -> Tensor:
    """Planes through the transform, the table, and back, in whole bytes."""
    n, c, h, w = x.shape
    tall, wide = -(-h // 8), -(-w // 8)
    if h % 8 or w % 8:
        x = F.pad(x, (0, 8 * wide - w, 0, 8 * tall - h), mode="replicate")
    blocks = x.view(n * c, tall, 8, wide, 8).transpose(2, 3).reshape(-1, 64)
    there, step, back = transforms(quality, table, x.device)
    levels = blocks.sub_(128).matmul(there).round_().mul_(step).round_()
    blocks = levels.matmul(back).add_(128.5 + 1e-4).floor_().clamp_(0, 255)
    return blocks.view(n * c, tall, wide, 8, 8).transpose(2, 3).reshape(n, c, 8 * tall, 8 * wide)[:, :, :h, :w]


@functools.lru_cache(maxsize=64)
def transforms(quality: int, table: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """A block to its coefficients in eighths [64, 64]; an eighth in steps of the table [64]; steps to a block [64, 64].

    libjpeg's transform ends in whole eighths, and its division rounds halves away from zero: so does ours, by a
    millionth more than the step.
    """
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    step = torch.tensor([min(max((t * scale + 50) // 100, 1), 255) for t in table], dtype=torch.float64)
    k, i = torch.arange(8, dtype=torch.float64)[:, None], torch.arange(8, dtype=torch.float64)
    cosine = torch.cos((2 * i + 1) * k * math.pi / 16) / 2
    cosine[0] /= math.sqrt(2)
    both = torch.kron(cosine, cosine)  # orthogonal: rows are coefficients, columns pixels
    made = (both.T * 8, (1 + 1e-6) / (8 * step), step[:, None] * both)
    return made[0].float().to(device), made[1].float().to(device), made[2].float().to(device)
