"""The searches find the maximum of a curve to within their tolerance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline

from calibrant.functional.search import bracket, golden

MEASURED = {  # (1/N) Σ ln p along σ: PEP with 5 members of two seeds, a published ResNet-20, 128 images of CIFAR-10
    0: (-0.22110, -0.21503, -0.20733, -0.20159, -0.19814, -0.19629, -0.19466, -0.19390, -0.19513, -0.19729, -0.20192,
        -0.21876, -0.28339, -0.52441),
    3: (-0.22110, -0.21093, -0.19556, -0.18149, -0.17093, -0.16461, -0.15866, -0.15327, -0.14894, -0.14667, -0.14669,
        -0.15612, -0.20547, -0.39301),
}  # fmt: skip
SIGMAS = np.array([0, 3, 6, 8.5, 10.5, 12, 13.5, 15, 16.5, 18, 20, 23.5, 30, 42]) * 1e-3


@pytest.mark.parametrize("seed", MEASURED)
@pytest.mark.parametrize("start", [0.006, 0.008378, 0.0117, 0.016, 0.025])
def test_a_measured_curve_of_pep(seed: int, start: float) -> None:
    """From 0.008378, the crest of the first cubic is at a probe that is a fifth below the maximum."""
    curve = CubicSpline(SIGMAS**2, MEASURED[seed])
    grid = np.linspace(0, SIGMAS[-1], 40_001)
    best = grid[np.argmax(curve(grid**2))]
    found = bracket(lambda s: float(curve(s * s)), float(curve(0)), start, low=5e-4, limit=0.042, factor=1.4)
    assert found.interior and found.interval[0] < best < found.interval[1]
    assert found.best == pytest.approx(best, rel=0.05)
    assert len(found.probes) <= 8 < len(golden(lambda s: float(curve(s * s)), 5e-4, 0.042).probes)


@settings(max_examples=200, deadline=None)
@given(st.floats(1.3, 4), st.floats(-1.2, 1.2), st.floats(1e-4, 10))
def test_curves_that_fall_by_any_power(power: float, start: float, scale: float) -> None:
    """u − u^power / power, with u = (x / scale)²: its maximum is at x = scale, whatever the power."""

    def f(x: float) -> float:
        u = (x / scale) ** 2
        return u - u**power / power

    found = bracket(f, 0.0, scale * float(np.exp(start)), factor=1.4, evaluations=30)
    assert found.best == pytest.approx(scale, rel=0.05)
