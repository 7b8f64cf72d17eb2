"""Noise of one band of frequencies (SS §2.2)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant.functional.frequency_band import band_pass
from calibrant.shifts.frequency import FrequencyNoise, accuracy_against_frequency


def test_band_pass_is_the_equation_with_the_full_transform() -> None:
    """F⁻¹(F(δ) ⊙ M_f) by numpy's fft2 and a mask filled by loops."""
    delta = np.random.default_rng(0).normal(size=(2, 3, 20, 15))
    for f, width in ((0.0, 0.1), (0.3, 0.1), (0.5, 0.25), (1.0, 0.1)):
        mask = np.zeros((20, 15))
        for i, fy in enumerate(np.fft.fftfreq(20) * 2):
            for j, fx in enumerate(np.fft.fftfreq(15) * 2):
                larger = round(max(abs(fy), abs(fx)), 9)
                low, high = round(f - width, 9), round(f + width, 9)
                mask[i, j] = low < larger <= high
        expected = np.fft.ifft2(np.fft.fft2(delta) * mask)
        assert np.abs(expected.imag).max() < 1e-12
        np.testing.assert_allclose(band_pass(torch.from_numpy(delta), f, width).numpy(), expected.real, atol=1e-12)


def test_noise_is_in_its_band_and_has_its_strength() -> None:
    x = torch.full((4, 3, 32, 32), 0.5)
    for f in (0.2, 0.6):
        noise = FrequencyNoise(f, sigma=0.02)(x, 0) - x
        torch.testing.assert_close(band_pass(noise, f, 0.1), noise, atol=1e-5, rtol=0)
        share = (band_pass(torch.randn(64, 1, 32, 32, generator=torch.Generator().manual_seed(1)), f, 0.1)).var()
        assert float(noise.var()) == pytest.approx(0.02**2 * float(share), rel=0.15)
    fixed = FrequencyNoise(0.4, l2=1.5)(x, 0) - x
    assert fixed.flatten(1).norm(dim=1).tolist() == pytest.approx([1.5] * 4, rel=1e-4)


def test_accuracy_against_frequency() -> None:
    """A classifier that reads the mean of 2 × 2 pixels in the corner is blind to the finest checkerboard."""
    x = torch.full((60, 1, 32, 32), 0.5)
    labels = torch.arange(60) % 2
    x[labels == 1] = 0.55
    x[labels == 0] = 0.45

    def predictor(images: torch.Tensor) -> torch.Tensor:
        seen = images[:, 0, :2, :2].mean((1, 2)) - 0.5
        return torch.stack((-seen, seen), dim=1)

    noise = FrequencyNoise(width=0.05, l2=5.0)
    got = accuracy_against_frequency(predictor, x, labels, frequencies=(0.1, 1.0), noise=noise, batch_size=7)
    assert torch.equal(
        got, accuracy_against_frequency(predictor, x, labels, frequencies=(0.1, 1.0), noise=noise, batch_size=60)
    )
    assert got[0] < 0.8 < got[1]


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 13, 9), (3, 28, 28)])
def test_an_image_alone_is_the_same_to_the_last_bit(shape: tuple[int, int, int]) -> None:
    x = torch.rand(4, *shape, generator=torch.Generator().manual_seed(0))
    for frequency in (0.2, 0.7, 1.0):
        noise = FrequencyNoise(frequency)
        alone = torch.cat([noise(x[i : i + 1], 3, index=i) for i in range(4)])
        assert torch.equal(alone, noise(x, 3)) and not torch.equal(alone, noise(x, 4))
