"""A band of spatial frequencies: the mask M_f of SS §2.2, and F⁻¹(F(δ) ⊙ M_f).

As in SS's Figure 6a and the authors' code, the band is a square ring: the frequencies whose larger component is within
`width` of f. Frequencies are in units of π per pixel, so 1 is the finest checkerboard and 0 a constant.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from calibrant.errors import InputError


def band_pass(delta: Tensor, frequency: float, width: float = 0.1) -> Tensor:
    """The part of δ [..., H, W] in the band f − width < max(|ω_x|, |ω_y|) ≤ f + width."""
    h, w = delta.shape[-2:]
    spectrum = torch.fft.rfft2(delta) * band(h, w, frequency, width, delta.device).to(delta.dtype)
    passed: Tensor = torch.fft.irfft2(spectrum, s=(h, w))
    return passed


@functools.lru_cache(maxsize=64)
def band(h: int, w: int, frequency: float, width: float, device: torch.device) -> Tensor:
    """M_f as 0 and 1, float64 [H, W // 2 + 1], in the layout of `rfft2`."""
    if not (0 <= frequency <= 1 and width > 0):
        raise InputError(f"a frequency must lie in 0 … 1 (units of π) and its width above 0, got {frequency}, {width}")
    rows = 2 * torch.fft.fftfreq(h, dtype=torch.float64).abs()
    columns = 2 * torch.fft.rfftfreq(w, dtype=torch.float64)
    larger = torch.maximum(rows[:, None], columns)
    near = 1e-9  # frequencies are multiples of 2 / side, so one may be on an edge; it belongs to the band below
    inside = (larger > frequency - width + near) & (larger <= frequency + width + near)
    if frequency - width < 0:
        inside |= larger == 0
    return inside.double().to(device)
