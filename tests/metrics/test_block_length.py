"""Block lengths from the autocorrelation, on AR(1) processes with known values."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.signal import lfilter
from scipy.stats import norm, t

from calibrant.metrics.block_length import FEWEST, block_length, student_widening, widening
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.frames import Frames


def autoregressive(rho: float, n: int, seed: int = 0) -> torch.Tensor:
    noise = torch.randn(n + 200, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.from_numpy(lfilter([1.0], [1.0, -rho], noise.numpy())[200:].copy())


@pytest.mark.parametrize("rho", [0.3, 0.6, 0.8])
@pytest.mark.parametrize("block", [10, 30])
def test_variance_missed_by_blocks_of_an_ar1_process(rho: float, block: int) -> None:
    """S = σ²(1 + ρ)/(1 − ρ), G = 2ρσ²/(1 − ρ)²: so G/S = 2ρ/(1 − ρ²)."""
    share = 2 * rho / (1 - rho * rho) / block
    assert widening(autoregressive(rho, 40_000), block) == pytest.approx(1 / math.sqrt(1 - share), rel=0.05)


def test_lengths_grow_with_the_correlation_and_five_blocks_remain() -> None:
    lengths = [block_length(autoregressive(rho, 400, 3)) for rho in (0.0, 0.5, 0.8, 0.99)]
    assert lengths == sorted(lengths) and lengths[0] <= 2 and lengths[-1] == 400 // FEWEST
    assert block_length(torch.stack([autoregressive(r, 400, 3) for r in (0.0, 0.8)])) == lengths[2]
    repelled = autoregressive(-0.8, 400)
    assert widening(autoregressive(0.0, 400), 1) == widening(repelled, 1) == 1
    assert block_length(repelled) <= 2 and block_length(torch.ones(50)) <= 2 and block_length(torch.zeros(3)) == 1
    for n in range(1, 30):
        series = autoregressive(0.5, n, n)
        assert 1 <= block_length(series) <= max(1, n // FEWEST) and 1 <= widening(series, 1) <= 2


def test_few_blocks_are_widened_by_students_t() -> None:
    assert student_widening(5, 0.95) == pytest.approx(t.ppf(0.975, 4) / norm.ppf(0.975))


def test_a_report_of_frames_chooses_its_block() -> None:
    g = torch.Generator().manual_seed(0)
    ease = autoregressive(0.9, 60)[:, None, None, None]
    y = torch.randint(3, (60, 4, 4), generator=g)
    frames = Frames()
    for z, labels in zip(
        torch.randn(60, 4, 4, 3, generator=g) + ease * torch.nn.functional.one_hot(y, 3), y, strict=True
    ):
        frames.add(z, labels)
    found = frames.report(resampling=Resampling(0, 200), block="auto")
    block = block_length(frames.series())
    assert block > 3 and found.extras["units"] == math.ceil(60 / block)
    widths = {b: frames.report(resampling=Resampling(0, 200), block=b)["ece"] for b in (1, block)}
    assert found["ece"] == widths[block]
