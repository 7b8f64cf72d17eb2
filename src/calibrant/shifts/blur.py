"""Blurs by a fixed kernel: gaussian, defocus (a disk), zoom."""

from __future__ import annotations

import functools
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.shifts.corruption import Corruption
from calibrant.shifts.counter import Draws
from calibrant.shifts.separable import clipped_zoom, gaussian, inside


class GaussianBlur(Corruption):
    """Gaussian blur."""

    name: ClassVar[str] = "gaussian_blur"

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return gaussian(x, self.constant(x, severity))


class DefocusBlur(Corruption):
    """Blur by a disk, as a lens out of focus gives."""

    name: ClassVar[str] = "defocus_blur"

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        return correlate(x, *self.constant(x, severity))


class ZoomBlur(Corruption):
    """Mean of the image and its enlargements, as of a camera that moves towards it."""

    name: ClassVar[str] = "zoom_blur"

    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        count, step = self.constant(x, severity)
        total = x * 2  # the image itself, and its enlargement by 1
        for factor in zoom_factors(count, step)[1:]:
            total += clipped_zoom(x, factor)
        return total.div_(count + 1)


def zoom_factors(count: int, step: float) -> list[float]:
    """1, 1 + step … with numpy.arange's rounding, which decides how large a crop ⌈side / factor⌉ is."""
    rounded = (1 + step) - 1
    return [1 + i * rounded for i in range(count)]


def correlate(x: Tensor, radius: float, alias: float) -> Tensor:
    """The image under the disk, borders mirrored; by Fourier transform, since a disk of radius 10 has 300 pixels."""
    h, w = x.shape[-2:]
    reach = disk(radius, alias).shape[0] // 2
    size = [fast_length(n + 2 * reach) for n in (h, w)]
    rows, columns = (inside(torch.arange(-reach, n + reach, device=x.device), n, "mirror") for n in (h, w))
    padded = x[..., rows, :][..., columns]
    blurred = filtered(padded, transfer(radius, alias, size[0], size[1], x.device), size)
    return blurred[..., 2 * reach : 2 * reach + h, 2 * reach : 2 * reach + w]


def filtered(x: Tensor, factor: Tensor, size: list[int]) -> Tensor:
    """F⁻¹(F(x) ⊙ factor), x [N, C, H, W]. A plane alone takes another path than one of many on a CPU, and differs in
    its last bit: it is given company, so that a result never depends on the batch."""
    alone = x.shape[0] * x.shape[1] == 1
    given = x.expand(2, -1, -1, -1) if alone else x
    made: Tensor = torch.fft.irfft2(torch.fft.rfft2(given, s=size) * factor, s=size)
    return made[:1] if alone else made


@functools.lru_cache(maxsize=32)
def transfer(radius: float, alias: float, h: int, w: int, device: torch.device) -> Tensor:
    """The disk's spectrum at this size; the disk is symmetric, so correlation and convolution are one."""
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
    smooth.scatter_add_(1, inside(torch.arange(n)[:, None] + tap, n, "mirror"), (weight / weight.sum()).expand(n, -1))
    kernel = smooth @ (flat / flat.sum()) @ smooth.T
    kept = int((kernel[reach] > 1e-12).sum()) // 2
    return kernel[reach - kept : reach + kept + 1, reach - kept : reach + kept + 1]


def fast_length(n: int) -> int:
    """The next length that has no prime factor over 5, which transforms fast."""
    while True:
        rest = n
        for p in (2, 3, 5):
            while rest % p == 0:
                rest //= p
        if rest == 1:
            return n
        n += 1
