"""Venn–Abers: p₀ and p₁ are scikit-learn's isotonic values with the new item added, also on ties and at the ends."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import isotonic_regression

import calibrant
from calibrant.posthoc.venn_abers import VennAbers, VennAbersMap, least_slopes, lower_steps, upper_steps


def by_definition(score: np.ndarray, hit: np.ndarray, new: float, label: bool) -> float:
    value, where = np.unique(np.append(score, new), return_inverse=True)
    weight = np.bincount(where)
    rate = np.bincount(where, np.append(hit, label).astype(float)) / weight
    return float(isotonic_regression(rate, sample_weight=weight)[np.searchsorted(value, new)])


@given(st.lists(st.tuples(st.integers(-6, 6), st.booleans()), min_size=1, max_size=40), st.integers(-15, 15))
def test_p0_and_p1_equal_their_definition(pairs: list[tuple[int, bool]], twice: int) -> None:
    score = np.array([s for s, _ in pairs], dtype=float)
    hit = np.array([h for _, h in pairs])
    new = twice / 2  # on a score, between two, or beyond the ends
    low, high = lower_steps(score, hit), upper_steps(score, hit)
    p0 = low.values[np.searchsorted(low.edges, new, "right")]
    p1 = high.values[np.searchsorted(high.edges, new, "left")]
    assert p0 == pytest.approx(by_definition(score, hit, new, False), abs=1e-12)
    assert p1 == pytest.approx(by_definition(score, hit, new, True), abs=1e-12)


def test_blocks_do_not_change_the_slopes() -> None:
    rng = np.random.default_rng(0)
    x, y = np.arange(501.0), np.concatenate([[0.0], np.cumsum(rng.random(500) < 0.4)])
    naive = [min((y[j] - y[i] + 1) / (x[j] - x[i] + 1) for j in range(i, 501)) for i in range(501)]
    for block in (7, 64, 1000):
        assert least_slopes(x, y, block) == pytest.approx(naive)


def test_the_interval_holds_the_merged_value() -> None:
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(400, 3, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    m = VennAbers().fit(calibrant.predictions(z, y))
    assert isinstance(m, VennAbersMap)
    p0, p1 = m.interval(torch.linspace(-2, 9, 50, dtype=torch.float64))
    merged = p1 / (1 - p0 + p1)
    assert bool((p0 <= p1).all()) and bool(((merged >= p0) & (merged <= p1)).all())
    assert 0 < m.record.certificate["mean_width"] < 0.2
