"""Random images with the spectrum of natural ones, power ~ 1 / frequency², and correlated colours."""

from __future__ import annotations

import torch
from torch import Tensor


def pictures(n: int, h: int = 32, w: int = 32, channels: int = 3, seed: int = 0) -> Tensor:
    """uint8 [n, channels, h, w]."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(n, 4, h, w, generator=generator)
    frequency = (torch.fft.fftfreq(h)[:, None] ** 2 + torch.fft.rfftfreq(w) ** 2).sqrt()
    frequency[0, 0] = 1.0
    field = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency, s=(h, w))
    field = (field - field.mean((2, 3), keepdim=True)) / field.std((2, 3), keepdim=True)
    coloured = 0.85 * field[:, :1] + 0.5 * field[:, 1 : 1 + channels]
    return (coloured * 55 + 120).clamp(0, 255).to(torch.uint8)
