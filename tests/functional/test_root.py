"""The scalar solver against scipy's brentq, and its result when there is no root inside."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from calibrant.functional.root import increasing_root


@settings(max_examples=200, deadline=None)
@given(
    root=st.floats(-9.5, 9.5),
    steepness=st.floats(-6, 6),
    start=st.floats(-10, 10),
    bend=st.floats(0, 5),
)
def test_root_of_s_shaped_functions(root: float, steepness: float, start: float, bend: float) -> None:
    s = math.exp(steepness)

    def f(x: float) -> tuple[float, float]:
        t = math.tanh(s * (x - root))
        return t + bend * t**3, s * (1 - t * t) * (1 + 3 * bend * t * t)

    found = increasing_root(f, -10, 10, start, 1e-9)
    assert found.sign_change and found.bound is None
    assert found.low <= found.root <= found.high and found.high - found.low <= 1e-9
    assert found.root == pytest.approx(brentq(lambda x: f(x)[0], -10, 10, xtol=1e-13), abs=2e-9)
    assert f(found.low)[0] == found.f_low <= 0 <= found.f_high == f(found.high)[0]


def test_a_wrong_slope_still_gives_the_root() -> None:
    """Bisection takes over where Newton's steps are useless."""
    for slope in (0.0, 1e-9, 1e9):
        found = increasing_root(lambda x, s=slope: (x - 0.3, s), -10, 10, 5.0, 1e-8)  # type: ignore[misc]
        assert found.root == pytest.approx(0.3, abs=1e-8)


@pytest.mark.parametrize(("shift", "bound", "at"), [(20, "high", 10), (-20, "low", -10)])
def test_no_root_inside_names_the_bound(shift: float, bound: str, at: float) -> None:
    found = increasing_root(lambda x: (x - shift, 1.0), -10, 10, 0.0, 1e-8)
    assert found.bound == bound and found.root == at and not found.sign_change
    assert found.to_dict()["bound"] == bound


def test_few_evaluations_near_a_good_start() -> None:
    found = increasing_root(lambda x: (math.sinh(x - 1), math.cosh(x - 1)), -10, 10, 1.01, 1e-7)
    assert found.evaluations <= 4
