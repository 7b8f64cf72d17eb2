"""CDF splines: γ = score + h', monotone and never 0 or 1; within-top-r."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.interpolate import CubicSpline
from sklearn.isotonic import IsotonicRegression

import calibrant
from calibrant.errors import InputError
from calibrant.posthoc.spline import Spline, cdf_spline


@pytest.mark.parametrize("power", [2.0, 0.1])  # the second one's γ leaves [0, 1]
def test_equals_the_least_squares_spline_written_naively(power: float) -> None:
    rng = np.random.default_rng(0)
    score = np.sort(rng.uniform(0.3, 1, 200))
    correct = rng.random(200) < score**power
    x, y = cdf_spline(score, correct, 6)
    t, h = np.arange(1, 201) / 200, np.cumsum(correct - score) / 200
    knots = np.linspace(0, 1, 6)
    columns = np.stack([CubicSpline(knots, row, bc_type="natural")(t) for row in np.eye(6)], 1)
    fitted = CubicSpline(knots, np.linalg.lstsq(columns, h, rcond=None)[0], bc_type="natural")
    slope = [(fitted(b) - fitted(a)) * 200 for a, b in zip(t - 1 / 200, t, strict=True)]
    gamma = score + slope
    above = gamma >= 1 - 0.5 / 201
    assert bool(above.any()) == (power == 0.1)
    if above.any():
        gamma[above] = (correct[above].sum() + 1) / (above.sum() + 2)
    level = IsotonicRegression().fit(np.arange(200), gamma).predict(np.arange(200))
    blocks = [np.flatnonzero(np.abs(level - v) < 1e-12) for v in dict.fromkeys(level.round(12))]
    assert x.numpy() == pytest.approx([score[b].mean() for b in blocks])
    assert y.numpy() == pytest.approx([gamma[b].mean() for b in blocks], abs=1e-9)


@pytest.mark.parametrize("scale", [0.5, 3.0, 1e4])
@pytest.mark.parametrize(("n", "accuracy"), [(40, 1.0), (60, 0.0), (300, 0.9), (5000, 0.97)])
def test_monotone_and_never_exactly_0_or_1(scale: float, n: int, accuracy: float) -> None:
    g = torch.Generator().manual_seed(n)
    z = scale * torch.randn(n, 10, generator=g, dtype=torch.float64)
    y = torch.where(torch.rand(n, generator=g) < accuracy, z.argmax(1), z.argmin(1))
    new = torch.cat([z, 100 * z, torch.zeros(1, 10), torch.full((1, 10), -torch.inf).index_fill(1, torch.tensor(3), 0)])
    p = calibrant.predictions(new, torch.zeros(len(new), dtype=torch.long))
    for within in (1, 2):
        m = Spline(within=within).fit(calibrant.predictions(z, y))
        before = torch.softmax(new, 1).topk(within, 1).values.sum(1)
        after = m.predictions(p)
        mass = after.confidence
        if mass is None:
            mass = torch.softmax(m(new), 1).gather(1, new.topk(2, 1).indices).sum(1)[:-1]  # the last has one class only
        order = torch.argsort(before[: len(mass)])
        assert bool((torch.diff(mass[order]) >= -1e-9).all())
        assert float(mass.min()) > 0 and float(mass.max()) < 1


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
