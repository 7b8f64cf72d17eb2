"""Blurs: gaussian, defocus (a disk), zoom, motion, glass.

Motion blur follows ImageMagick's `MotionBlurImage`, which made the published files: every pixel is the mean of the
2 · radius + 1 pixels along a line that starts in it, with weights exp(−i² / 2σ²); tap i is the pixel nearest to i steps
along the angle, and pixels of the border are repeated.
"""

from __future__ import annotations

import functools
import math
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.shifts.corruption import SLACK, Corruption, Strengths
from calibrant.shifts.random_numbers import Draws
from calibrant.shifts.separable import border_index, clipped_zoom, gaussian

NEGLIGIBLE = 1e-5
"""Weights of the motion blur below this change no byte."""


class GaussianBlur(Corruption):
    """Gaussian blur."""

    name: ClassVar[str] = "gaussian_blur"
    strengths: ClassVar[Strengths] = {32: (0.4, 0.6, 0.7, 0.8, 1), 224: (1, 2, 3, 4, 6)}
    """Standard deviation."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return gaussian(x, self.strength(x, severity))


class DefocusBlur(Corruption):
    """Blur by a disk, as from a lens out of focus."""

    name: ClassVar[str] = "defocus_blur"
    strengths: ClassVar[Strengths] = {
        32: ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        224: ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    }
    """(radius of the disk, standard deviation of its anti-aliasing)."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return correlate(x, *self.strength(x, severity))


class ZoomBlur(Corruption):
    """Mean of the image and its enlargements, as from a camera that moves towards it."""

    name: ClassVar[str] = "zoom_blur"
    strengths: ClassVar[Strengths] = {
        32: ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
        224: ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
    }
    """(number of zoom factors, their distance); the first is 1. Published as numpy.arange(1, end, step), which by
    rounding includes the ends 1.06 and 1.11, but not 1.16."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        count, step = self.strength(x, severity)
        total = x * 2  # the image itself, and its enlargement by 1
        for factor in zoom_factors(count, step)[1:]:
            total += clipped_zoom(x, factor)
        return total.div_(count + 1)


class MotionBlur(Corruption):
    """Blur along a line at a random angle within 45° of the horizontal."""

    name: ClassVar[str] = "motion_blur"
    nearest: ClassVar[bool] = True
    strengths: ClassVar[Strengths] = {
        32: ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        224: ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    }
    """(radius, standard deviation)."""

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        radius, sigma = self.strength(x, severity)
        return motion(x, radius, sigma, numbers.between(-45, 45))


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
            source = copied_pixels(offset[:, 0], offset[:, 1], reach)
            flat = flat.gather(2, source[:, None].expand(n, c, h * w))
        return gaussian(flat.view(n, c, h, w), sigma)


def zoom_factors(count: int, step: float) -> list[float]:
    """1, 1 + step … with numpy.arange's rounding, which decides how large a crop ⌈side / factor⌉ is."""
    rounded = (1 + step) - 1
    return [1 + i * rounded for i in range(count)]


def correlate(x: Tensor, radius: float, alias: float) -> Tensor:
    """Blur images by the disk, with mirrored borders. The Fourier transform is faster: a disk may have 300 pixels."""
    from scipy.fft import next_fast_len

    h, w = x.shape[-2:]
    reach = disk(radius, alias).shape[0] // 2
    size = [next_fast_len(n + 2 * reach, real=True) for n in (h, w)]
    rows, columns = (border_index(torch.arange(-reach, n + reach, device=x.device), n, "mirror") for n in (h, w))
    padded = x[..., rows, :][..., columns]
    blurred = fft_filter(padded, transfer(radius, alias, size[0], size[1], x.device), size)
    return blurred[..., 2 * reach : 2 * reach + h, 2 * reach : 2 * reach + w]


def fft_filter(x: Tensor, factor: Tensor, size: list[int]) -> Tensor:
    """F⁻¹(F(x) ⊙ factor), x [N, C, H, W].

    On a CPU, torch transforms a single plane by another algorithm than several planes, and the last bit differs. So a
    single plane is doubled, and the result does not depend on the batch.
    """
    alone = x.shape[0] * x.shape[1] == 1
    given = x.expand(2, -1, -1, -1) if alone else x
    made: Tensor = torch.fft.irfft2(torch.fft.rfft2(given, s=size) * factor, s=size)
    return made[:1] if alone else made


@functools.lru_cache(maxsize=32)
def transfer(radius: float, alias: float, h: int, w: int, device: torch.device) -> Tensor:
    """The spectrum of the disk at this size. As the disk is symmetric, correlation and convolution are the same."""
    spectrum: Tensor = torch.fft.rfft2(disk(radius, alias), s=(h, w))
    return spectrum.to(torch.complex64).to(device)


@functools.lru_cache(maxsize=32)
def disk(radius: float, alias: float) -> Tensor:
    """A disk of pixels, smoothed at its rim by a Gaussian of 3 × 3 taps (5 × 5 for radii over 8), float64.

    The published grid reaches 8 pixels, or `radius` if that is more, and mirrors the smoothing at its edge; pixels that
    stay 0 are cut off here.
    """
    reach = max(8, int(radius))
    axis = torch.arange(-reach, reach + 1, dtype=torch.float64)
    flat = ((axis[:, None] ** 2 + axis**2) <= radius**2).double()
    half = 1 if radius <= 8 else 2
    tap = torch.arange(-half, half + 1)
    weight = torch.exp(-0.5 / alias**2 * tap.double() ** 2)
    n = len(axis)
    smooth = torch.zeros(n, n, dtype=torch.float64)
    smooth.scatter_add_(
        1, border_index(torch.arange(n)[:, None] + tap, n, "mirror"), (weight / weight.sum()).expand(n, -1)
    )
    kernel = smooth @ (flat / flat.sum()) @ smooth.T
    kept = int((kernel[reach] > 1e-12).sum()) // 2
    return kernel[reach - kept : reach + kept + 1, reach - kept : reach + kept + 1]


def motion(x: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """Blur each image of x [N, C, H, W] along its own angle of `degrees` [N]."""
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


def copied_pixels(right: Tensor, down: Tensor, reach: int) -> Tensor:
    """The old pixel that each pixel becomes, int64 [N, H·W], for offsets [N, H, W] within −reach … reach − 1.

    The published loop is meant to swap each pixel with a random neighbour, from the lower right corner to the upper
    left. But it assigns numpy views, so the second assignment reads what the first has just written: the neighbour is
    copied and does not change. The published files are made by such copies, and so are ours.

    A copy reads the current value of its source. Sources above or left of the pixel are still old; those below or right
    are already new. So every pixel becomes one old pixel, found by following sources as long as they lie ahead. Pointer
    doubling does this for all pixels of all images at once. The loop visits rows and columns reach + 1 … side − reach,
    both ends included; the other pixels do not change.
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
