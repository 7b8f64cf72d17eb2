"""Intervals of a proportion against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from calibrant.functional.binomial import clopper_pearson, exact_lower, wilson

CASES = [(0, 1), (1, 1), (0, 12), (12, 12), (3, 7), (499, 1000), (9999, 10000)]


@pytest.mark.parametrize(("hits", "n"), CASES)
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_against_scipy(hits: int, n: int, level: float) -> None:
    test = binomtest(hits, n)
    for ours, method in ((wilson, "wilson"), (clopper_pearson, "exact")):
        expected = test.proportion_ci(level, method)
        np.testing.assert_allclose(ours(hits, n, level), (expected.low, expected.high), atol=1e-10)


@pytest.mark.parametrize(("hits", "n"), CASES)
def test_one_sided_bound(hits: int, n: int) -> None:
    expected = binomtest(hits, n, alternative="greater").proportion_ci(0.99).low
    assert float(exact_lower(hits, n, 0.01)) == pytest.approx(expected, abs=1e-10)


def test_zero_items_give_the_whole_range() -> None:
    assert [float(v) for v in wilson(0, 0)] == [0, 1]
