"""Isotonic regression against scikit-learn, at the fitted points and between them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression

import calibrant
from calibrant.posthoc.isotonic import Isotonic, pava


@settings(max_examples=150, deadline=None)
@given(
    data=st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=2, max_size=60),
    queries=st.lists(st.floats(-0.2, 1.2), min_size=1, max_size=20),
)
def test_equals_scikit_learn_with_ties(data: list[tuple[int, bool]], queries: list[float]) -> None:
    x = np.array([v for v, _ in data]) / 12
    hit = np.array([h for _, h in data])
    steps = pava(x, hit)
    oracle = IsotonicRegression(out_of_bounds="clip").fit(x, hit.astype(float))
    at = np.concatenate([x, queries])
    assert np.interp(at, steps.x, steps.y) == pytest.approx(oracle.predict(at), abs=1e-9)
    assert (np.diff(steps.soft) >= -1e-12).all() and (steps.soft > 0).all() and (steps.soft < 1).all()
    points, fitted = pava(x, hit, centred=True), oracle.predict(x)
    assert points.x == pytest.approx([x[np.isclose(fitted, y)].mean() for y in points.y])


@pytest.mark.parametrize("kind", ["top", "one_vs_rest"])
def test_maps_equal_scikit_learn(kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(3000, 4, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    new = 2 * torch.randn(500, 4, generator=g, dtype=torch.float64)
    p = calibrant.predictions(z, y)
    m = Isotonic(kind=kind).fit(p)  # type: ignore[arg-type]
    old, fresh = torch.softmax(z, 1).numpy(), torch.softmax(new, 1).numpy()
    if kind == "top":
        oracle = IsotonicRegression(out_of_bounds="clip").fit(old.max(1), old.argmax(1) == y.numpy())
        after = m.predictions(calibrant.predictions(new, torch.zeros(500)))
        assert after.confidence is not None
        assert after.confidence.numpy() == pytest.approx(oracle.predict(fresh.max(1)), abs=1e-9)
        return
    out = torch.exp(m(new)).numpy()
    for c in range(4):
        oracle = IsotonicRegression(out_of_bounds="clip").fit(old[:, c], y.numpy() == c)
        expected = oracle.predict(fresh[:, c])
        inside = (expected > 0.01) & (expected < 0.9)  # the ends are softened on purpose
        assert inside.sum() > 100
        assert out[inside, c] == pytest.approx(expected[inside], abs=1e-9)


def test_softened_ends_never_pass_their_neighbours() -> None:
    steps = pava(np.array([0.1, 0.2, 0.3, 0.4, 0.5]), np.array([False, True, True, False, True]))
    assert steps.y[0] == 0 and 0 < steps.soft[0] < steps.y[2]
    only = pava(np.array([0.1, 0.2, 0.2]), np.array([False, False, False]))
    assert set(only.y) == {0.0} and only.soft[0] == pytest.approx(0.5 / 4)


def test_centred_points_are_the_means_of_the_blocks() -> None:
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.6, 0.9])
    hit = np.array([False, True, False, True, True, True])
    steps = pava(values, hit, centred=True)
    assert steps.x == pytest.approx([0.1, 0.25, (0.4 + 0.6 + 0.9) / 3])
    assert steps.y == pytest.approx([0.0, 0.5, 1.0])
