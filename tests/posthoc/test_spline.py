"""CDF splines: γ = score + h', a known distortion undone, within-top-r."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline

import calibrant
from calibrant.errors import InputError
from calibrant.posthoc.spline import Spline, cdf_spline


def test_equals_the_least_squares_spline_written_naively() -> None:
    rng = np.random.default_rng(0)
    score = np.sort(rng.uniform(0.3, 1, 200))
    correct = rng.random(200) < score**2
    x, y = cdf_spline(score, correct, 6)
    t, h = np.arange(1, 201) / 200, np.cumsum(correct - score) / 200
    knots = np.linspace(0, 1, 6)
    columns = np.stack([CubicSpline(knots, row, bc_type="natural")(t) for row in np.eye(6)], 1)
    fitted = CubicSpline(knots, np.linalg.lstsq(columns, h, rcond=None)[0], bc_type="natural")
    slope = [(fitted(b) - fitted(a)) * 200 for a, b in zip(t - 1 / 200, t, strict=True)]
    assert x.numpy() == pytest.approx(score)
    assert y.numpy() == pytest.approx(np.clip(score + slope, 0, 1), abs=1e-9)


def test_undoes_a_known_distortion() -> None:
    g = torch.Generator().manual_seed(0)
    c = 0.5 + 0.5 * torch.rand(20_000, generator=g, dtype=torch.float64)
    truth = 0.4 + 0.5 * (c - 0.5)
    hit = torch.rand(20_000, generator=g) < truth
    p = calibrant.predictions(predicted=torch.zeros(20_000, dtype=torch.long), confidence=c, labels=(~hit).long())
    got = Spline().fit(p).predictions(p).confidence
    assert got is not None and float((got - truth).abs().mean()) < 0.02 < float((c - truth).abs().mean()) / 10


def test_within_two() -> None:
    g = torch.Generator().manual_seed(1)
    z = 4 * torch.randn(6000, 5, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z / 3, 1), 1, generator=g)[:, 0]
    p = calibrant.predictions(z, y)
    m = Spline(within=2).fit(p)

    def gap(logits: torch.Tensor) -> float:
        high = torch.softmax(z, 1).topk(2, 1).indices
        mass = torch.softmax(logits, 1).gather(1, high).sum(1)
        return abs(float(mass.mean() - (high == y[:, None]).any(1).double().mean()))

    assert gap(m(z)) < 0.01 < gap(z)
    with pytest.raises(InputError, match="within=5"):
        Spline(within=5).fit(p)
