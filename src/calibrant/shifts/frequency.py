"""Noise of one band of frequencies (SS §2.2, Fig. 6): x + F⁻¹(F(δ) ⊙ M_f), δ Gaussian, and accuracy against frequency.

SS does not give the deviation of δ. Here it is `sigma` before the mask, and the image is clipped to its range. A wide
ring of high frequencies then carries more power than a narrow one of low frequencies, as in SS. With `l2` instead, the
noise has this norm after the mask, so that all frequencies have equal power.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.frequency_band import band_pass
from calibrant.shifts.corruption import as_dtype_of, check_images, full_precision, to_floats
from calibrant.shifts.random_numbers import draws

FREQUENCIES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""In units of π, the axis of SS Fig. 6c."""


@dataclass(frozen=True)
class FrequencyNoise:
    """Gaussian noise of the frequencies within `width` of `frequency`, both in units of π (SS §2.2)."""

    frequency: float = 0.5
    width: float = 0.1
    sigma: float = 0.1
    l2: float | None = None
    name: ClassVar[str] = "frequency_noise"

    def __post_init__(self) -> None:
        if self.sigma < 0 or (self.l2 is not None and self.l2 < 0):
            raise InputError(f"the strength of noise must not be negative, got sigma={self.sigma}, l2={self.l2}")

    def __call__(self, x: Tensor, rng: torch.Generator | int, *, index: Tensor | int | None = None) -> Tensor:
        """Images [N, C, H, W], uint8 or in [0, 1]; randomness is per item, as in every shift.

        δ does not depend on the frequency, so all frequencies filter the same noise.
        """
        check_images(x)
        with full_precision(x.device):
            noise = draws(rng, self.name, 0, x.shape[0], x.device, index).normal(*x.shape[1:])
            if noise.shape[0] * noise.shape[1] == 1:  # a single plane would differ in its last bit (`blur.fft_filter`)
                noise = noise.expand(2, -1, -1, -1)
            noise = band_pass(noise, self.frequency, self.width)[: x.shape[0]]
            if self.l2 is not None:
                norm = noise.flatten(1).norm(dim=1)[:, None, None, None]
                noise = noise * (self.l2 / norm.clamp_min(1e-12))
            else:
                noise = noise * self.sigma
            return as_dtype_of(to_floats(x).add_(noise), x, nearest=True)


def accuracy_against_frequency(
    predictor: Callable[[Tensor], Tensor],
    x: Tensor,
    labels: Tensor,
    *,
    frequencies: Sequence[float] = FREQUENCIES,
    noise: FrequencyNoise | None = None,
    seed: int = 0,
    batch_size: int = 500,
) -> Tensor:
    """Accuracy under noise of each frequency, float64 [F]. `predictor` maps images like `x` to logits.

    One batch is in memory at a time; `noise` sets the width and the strength.
    """
    if not len(x) or len(x) != len(labels):
        raise InputError(f"{len(x)} images and {len(labels)} labels: give at least one image, and one label per image")
    noise = noise or FrequencyNoise()
    right = torch.zeros(len(frequencies), dtype=torch.float64)
    for start in range(0, len(x), batch_size):
        images, truth = x[start : start + batch_size], labels[start : start + batch_size]
        for i, frequency in enumerate(frequencies):
            logits = predictor(replace(noise, frequency=frequency)(images, seed, index=start))
            right[i] += float((logits.argmax(-1) == truth.to(logits.device)).sum())
    return right / len(x)
