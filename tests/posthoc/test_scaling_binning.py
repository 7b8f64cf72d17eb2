"""Scaling–binning: each value is the mean of Platt's in its bin, and the verified error is near the truth."""

from __future__ import annotations

import pytest
import torch
from sklearn.calibration import _SigmoidCalibration

import calibrant
from calibrant.posthoc.scaling_binning import ScalingBinning, ScalingBinningMap
from calibrant.types import Predictions


def top1(n: int, seed: int = 0, bend: float = 1.0) -> tuple[Predictions, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    s = 2 + 1.5 * torch.randn(n, generator=g, dtype=torch.float64)
    truth = torch.sigmoid(0.5 * s * bend - 0.2)
    hit = torch.rand(n, generator=g) < truth
    zero = torch.zeros(n, dtype=torch.long)
    return calibrant.predictions(predicted=zero, confidence=torch.sigmoid(s), labels=(~hit).long()), s


def test_values_are_means_of_platt_in_bins_of_equal_mass() -> None:
    p, s = top1(1000)
    m = ScalingBinning(bins=10).fit(p)
    assert isinstance(m, ScalingBinningMap)
    oracle = _SigmoidCalibration().fit(s.numpy(), (p.labels == 0).numpy())
    g = torch.from_numpy(oracle.predict(s.numpy())).sort().values
    assert m.value.tolist() == pytest.approx([float(part.mean()) for part in g.chunk(10)], abs=1e-5)
    after = m.predictions(p).confidence
    assert after is not None and len(after.unique()) == 10


def test_verified_error_is_small_when_platt_is_right() -> None:
    p, _ = top1(20_000)
    certificate = ScalingBinning().fit(p).record.certificate
    assert certificate["calibration_error"] < 0.01
    assert "unseen" not in certificate.get("reason", "")


def test_verified_error_is_found_when_platt_cannot_be_right() -> None:
    g = torch.Generator().manual_seed(0)
    s = 3 * torch.randn(20_000, generator=g, dtype=torch.float64)
    truth = 0.5 + 0.4 * torch.cos(s)  # no sigmoid
    hit = torch.rand(20_000, generator=g) < truth
    zero = torch.zeros(20_000, dtype=torch.long)
    p = calibrant.predictions(predicted=zero, confidence=torch.sigmoid(s), labels=(~hit).long())
    m = ScalingBinning().fit(p)
    value = m.predictions(p).confidence
    assert value is not None
    bins = value.unique(return_inverse=True)[1]
    rate = torch.bincount(bins, truth) / torch.bincount(bins)
    true_error = float((value - rate[bins]).square().mean().sqrt())
    assert m.record.certificate["calibration_error"] == pytest.approx(true_error, abs=0.02)


def test_too_few_to_verify_says_so() -> None:
    p, _ = top1(40)
    assert "too few" in ScalingBinning().fit(p).record.certificate["reason"]
