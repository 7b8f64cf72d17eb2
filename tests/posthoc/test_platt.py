"""Platt scaling against scikit-learn's `_SigmoidCalibration`, class by class."""

from __future__ import annotations

import pytest
import torch
from sklearn.calibration import _SigmoidCalibration

import calibrant
from calibrant.posthoc.platt import Platt, PlattMap


def test_every_class_equals_scikit_learns() -> None:
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(800, 4, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    m = Platt().fit(calibrant.predictions(z, y))
    assert isinstance(m, PlattMap)
    p = torch.softmax(z, 1)
    log_odds = torch.log(p) - torch.log1p(-p)
    for c in range(4):
        oracle = _SigmoidCalibration().fit(log_odds[:, c].numpy(), (y == c).numpy())
        assert float(m.a[c]) == pytest.approx(-oracle.a_, abs=1e-5)
        assert float(m.b[c]) == pytest.approx(-oracle.b_, abs=1e-5)
    raw = torch.sigmoid(log_odds * m.a + m.b)
    assert torch.allclose(torch.softmax(m(z), 1), raw / raw.sum(1, keepdim=True), atol=1e-10)


def test_impossible_classes_do_not_count() -> None:
    """An item whose logit of a class is −inf says nothing about the a and b of that class."""
    g = torch.Generator().manual_seed(2)
    z = 3 * torch.randn(800, 3, generator=g, dtype=torch.float64)
    z[:400, 2] = -torch.inf
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    m = Platt().fit(calibrant.predictions(z, y))
    assert isinstance(m, PlattMap)
    p = torch.softmax(z[400:], 1)[:, 2]
    oracle = _SigmoidCalibration().fit((torch.log(p) - torch.log1p(-p)).numpy(), (y[400:] == 2).numpy())
    assert float(m.a[2]) == pytest.approx(-oracle.a_, abs=1e-5)
    assert float(m.b[2]) == pytest.approx(-oracle.b_, abs=1e-5)


def test_separable_scores_stay_short_of_certainty() -> None:
    s = torch.linspace(-5, 5, 40, dtype=torch.float64)
    m = Platt().fit(calibrant.predictions(torch.stack([-s, s], 1), (s > 0).long()))
    q = torch.softmax(m(torch.stack([-s, s], 1)), 1)[:, 1]
    oracle = _SigmoidCalibration().fit(2 * s.numpy(), (s > 0).numpy())
    assert q.numpy() == pytest.approx(oracle.predict(2 * s.numpy()), abs=1e-4)
    assert float(q.max()) < 0.999
