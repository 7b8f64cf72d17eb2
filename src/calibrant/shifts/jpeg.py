"""JPEG compression on the device: an image is encoded and decoded again, with every lossy step of the format.

As libjpeg does by default, and so Pillow: YCbCr in bytes, colour at half the resolution, 8 × 8 cosine transforms
divided by the standard tables (ITU T.81, Annex K) scaled by the quality, rounded; then back, colour enlarged by a
triangle filter ("fancy upsampling"). Entropy coding is lossless and left out. Colours are computed with libjpeg's
integers of 16 fractional bits, which float32 adds exactly in any order. libjpeg's cosine transforms are integer
approximations, so a pixel may differ where a coefficient is close to a rounding edge.
"""

from __future__ import annotations

import functools
import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.shifts.corruption import Corruption, Strengths
from calibrant.shifts.random_numbers import Draws

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

ONE = 65536
"""The number 1 in libjpeg's fixed-point arithmetic for colours."""


class JpegCompression(Corruption):
    """JPEG at low quality, colour at half the resolution."""

    name: ClassVar[str] = "jpeg_compression"
    bytewise: ClassVar[bool] = True
    strengths: ClassVar[Strengths] = {32: (80, 65, 58, 50, 40), 224: (25, 18, 15, 10, 7)}
    """Quality."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return jpeg(x, self.strength(x, severity))


def jpeg(x: Tensor, quality: int) -> Tensor:
    """Compress images of bytes as floats [N, 1 or 3, H, W]; to be clipped and rounded down. Changes x in place."""
    if x.shape[1] == 1:
        return compressed(x - 128, quality, LUMINANCE).add_(128)
    h, w = x.shape[2:]
    y, colour = to_ycc(x)
    colour = compressed(halved(colour), quality, CHROMINANCE)[..., : -(-w // 2)]
    return to_rgb(compressed(y, quality, LUMINANCE), doubled(colour)[:, :, :h, :w], x)


def to_ycc(x: Tensor) -> tuple[Tensor, Tensor]:
    """JFIF's YCbCr in whole numbers around 0: Y − 128, and both colours."""
    n, _, h, w = x.shape
    factors, half = ycc_factors(x.device)
    made = torch.baddbmm(half.expand(n, 3, h * w), factors.expand(n, 3, 3), x.view(n, 3, h * w)).floor_()
    return made[:, :1].view(n, 1, h, w), made[:, 1:].view(n, 2, h, w)


@functools.lru_cache(maxsize=8)
def ycc_factors(device: torch.device) -> tuple[Tensor, Tensor]:
    factors = torch.tensor([[19595, 38470, 7471], [-11059, -21709, 32768], [32768, -27439, -5329]]) / ONE
    # for the colours libjpeg rounds with slightly less than a half
    half = torch.tensor([[ONE / 2 - 128 * ONE], [ONE / 2 - 1], [ONE / 2 - 1]]) / ONE
    return factors.float().to(device), half.float().to(device)


def to_rgb(y: Tensor, colour: Tensor, out: Tensor) -> Tensor:
    """From whole numbers around 0 to RGB, still to be clipped and rounded down to bytes."""
    cb, cr = colour[:, :1], colour[:, 1:]
    y = y + 128.5
    torch.add(y, cr, alpha=91881 / ONE, out=out[:, :1])
    torch.add(y, cb, alpha=-22554 / ONE, out=out[:, 1:2]).add_(cr, alpha=-46802 / ONE)
    torch.add(y, cb, alpha=116130 / ONE, out=out[:, 2:])
    return out


def halved(x: Tensor) -> Tensor:
    """Means of 2 × 2 pixels; halves are rounded down and up in turn along a row (libjpeg's bias of 1, 2, 1, 2 …).

    Like libjpeg, a row is first extended to whole blocks by its last pixel. Extending it after taking the means would
    give other values.
    """
    h, w = x.shape[2:]
    x = F.pad(x, (0, -w % 16, 0, h % 2), mode="replicate") if h % 2 or w % 16 else x
    pairs = x[:, :, ::2] + x[:, :, 1::2]
    total = pairs[..., ::2] + pairs[..., 1::2]
    return total.add_(torch.arange(total.shape[3], device=x.device) % 2 + 1).mul_(0.25).floor_()


def doubled(x: Tensor) -> Tensor:
    """Triangle filter: 3/4 of the nearer and 1/4 of the farther pixel along each axis, border repeated.

    In exact sixteenths. Before it rounds down, libjpeg adds 8 and 7 of them in turn along a row; here a quarter of that
    is added to each of the four pixels that make one.
    """
    n, c, h, w = x.shape
    padded = torch.cat((x[..., :1], x, x[..., -1:]), dim=3).mul_(1 / 16)
    near = padded[..., 1:-1] * 3
    left, right = padded[..., :-2].add(2 / 16).add_(near), padded[..., 2:].add(1.75 / 16).add_(near)
    # interleave even and odd columns as the parts of complex numbers, which torch does fast
    wide = torch.view_as_real(torch.complex(left, right)).view(n, c, h, 2 * w)
    out = torch.empty(n, c, h, 2, 2 * w, device=x.device)
    upper, lower = out[:, :, :, 0], out[:, :, :, 1]
    torch.add(wide[:, :, :-1], wide[:, :, 1:], alpha=3, out=upper[:, :, 1:])
    torch.add(wide[:, :, 1:], wide[:, :, :-1], alpha=3, out=lower[:, :, :-1])
    torch.mul(wide[:, :, 0], 4, out=upper[:, :, 0])
    torch.mul(wide[:, :, -1], 4, out=lower[:, :, -1])
    return out.view(n, c, 2 * h, 2 * w).floor_()


def compressed(x: Tensor, quality: int, table: tuple[int, ...]) -> Tensor:
    """Planes around 0 → transform → division by the table → and back, in whole numbers in the range of a byte."""
    n, c, h, w = x.shape
    tall, wide = -(-h // 8), -(-w // 8)
    if h % 8 or w % 8:
        x = F.pad(x, (0, 8 * wide - w, 0, 8 * tall - h), mode="replicate")
    blocks = x.view(n, c, tall, 8, wide, 8).transpose(3, 4).reshape(-1, 64)
    forward, step, back = transforms(quality, table, x.device)
    levels = blocks.matmul(forward).round_().mul_(step).round_()
    torch.matmul(levels, back, out=blocks).add_(0.5 + 1e-4).floor_().clamp_(-128, 127)
    return blocks.view(n, c, tall, wide, 8, 8).transpose(3, 4).reshape(n, c, 8 * tall, 8 * wide)[:, :, :h, :w]


@functools.lru_cache(maxsize=64)
def transforms(quality: int, table: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """A block to its coefficients in eighths [64, 64]; an eighth in steps of the table [64]; steps to a block [64, 64].

    libjpeg's transform ends in whole eighths, and its division rounds halves away from zero. Ours does so by dividing
    by a millionth less than the step.
    """
    scale = 5000 // quality if quality < 50 else 200 - 2 * quality
    step = torch.tensor([min(max((t * scale + 50) // 100, 1), 255) for t in table], dtype=torch.float64)
    k, i = torch.arange(8, dtype=torch.float64)[:, None], torch.arange(8, dtype=torch.float64)
    cosine = torch.cos((2 * i + 1) * k * math.pi / 16) / 2
    cosine[0] /= math.sqrt(2)
    both = torch.kron(cosine, cosine)  # orthogonal: rows are coefficients, columns pixels
    made = (both.T * 8, (1 + 1e-6) / (8 * step), step[:, None] * both)
    return made[0].float().to(device), made[1].float().to(device), made[2].float().to(device)
