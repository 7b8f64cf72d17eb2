"""The three signs of an ensemble (SS App. D): the verdict of known differences, and of a real ensemble."""

from __future__ import annotations

import pytest
import torch

from calibrant.diagnostics import ensemble_signs, paired_difference

RNG = torch.Generator().manual_seed(0)
NOISE = torch.randn(40, generator=RNG, dtype=torch.float64)
LOWER = (NOISE, NOISE - 1 + 0.1 * NOISE.roll(1))
HIGHER = (NOISE, NOISE + 1 + 0.1 * NOISE.roll(2))
SAME = (NOISE, NOISE + 0.1 * (NOISE.roll(3) - NOISE.mean()))


def test_all_three_signs() -> None:
    found = ensemble_signs(LOWER, LOWER, LOWER)
    assert found.shown == ["variance", "high_frequency", "sharpness"] and not found.opposite
    assert found.verdict == (
        "shows all three signs of an ensemble: feature maps that vary less, less high frequency, a flatter loss"
    )


def test_one_shown_one_opposite_one_within_noise() -> None:
    found = ensemble_signs(LOWER, HIGHER, SAME)
    assert found.shown == ["variance"] and found.opposite == ["high_frequency"]
    assert found.verdict == (
        "shows 1 of the three signs of an ensemble; it has feature maps that vary less; "
        "the opposite of less high frequency; within noise: a flatter loss"
    )


def test_the_three_share_five_per_cent() -> None:
    """Between two networks that are alike, any sign at all is called in about 5% of trials at most."""
    called = 0
    for _ in range(1000):
        pairs = [(torch.zeros(20), torch.randn(20, generator=RNG)) for _ in range(3)]
        found = ensemble_signs(pairs[0], pairs[1], pairs[2])
        called += bool(found.shown or found.opposite)
    assert 30 <= called <= 70
    expected = paired_difference(*LOWER, comparisons=6).estimate
    assert ensemble_signs(LOWER, SAME, SAME, comparisons=2).differences["variance"].estimate.low == pytest.approx(
        expected.low
    )
