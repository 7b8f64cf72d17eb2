"""The room left (RC §5.1): bounds are bounds, the optimal ECE is that of the grid, the curve has a row per epoch."""

from __future__ import annotations

import pytest

import calibrant
from calibrant.posthoc.calibratability import calibratability, calibratability_curve
from calibrant.posthoc.temperature import GRID
from tests.posthoc.simulated import simulated


def test_every_family_bounds_what_a_held_out_fit_reaches() -> None:
    p, held = simulated(scale=3.0, split="test"), simulated(scale=3.0, seed=1, split="calibration")
    found = calibratability(p, ("temperature", "vector", "isotonic", "histogram_mass"))
    assert found.to_dict()["oracle"] is True and "not a result" in found.said
    for name in ("temperature", "vector"):
        m = calibrant.fit(name, held)
        report = calibrant.evaluate(m.predictions(p), metrics=["nll"], intervals=False)
        assert found[name].nll is not None and report["nll"].value is not None
        assert found[name].nll <= report["nll"].value + 1e-9
    for room in found.rows[1:]:
        assert room.room_nll == pytest.approx(found["as it is"].nll - room.nll)  # type: ignore[operator]
        assert room.room_ece is not None and room.room_ece > 0


def test_optimal_ece_is_the_least_over_rcs_grid() -> None:
    p = simulated(500, scale=2.0, split="test")
    room = calibratability(p, ("temperature",))["temperature"]
    assert p.logits is not None and room.optimal_ece is not None
    for T in GRID[99:400:20]:
        at = calibrant.evaluate(p.logits / T, p.labels, metrics=["ece"], intervals=False)["ece"].value
        assert at is not None and room.optimal_ece <= at + 1e-12
    assert room.ece is not None and room.optimal_ece <= room.ece


def test_curve_over_epochs() -> None:
    rows = calibratability_curve([simulated(300, scale=s, split="test") for s in (1.0, 2.0, 4.0)], ece_grid=False)
    assert [r["epoch"] for r in rows] == [1, 1, 2, 2, 3, 3]
    temperatures = [r["temperature"] for r in rows if r["family"] == "temperature"]
    assert temperatures == sorted(temperatures) and temperatures[2] == pytest.approx(4 * temperatures[0], rel=1e-6)
    oracle = [r["nll"] for r in rows if r["family"] == "temperature"]
    assert oracle == pytest.approx([oracle[0]] * 3)  # scaling loses nothing that a temperature cannot give back


def test_a_family_that_cannot_be_fitted_says_why() -> None:
    found = calibratability(simulated(10, split="test"), ("histogram",))
    assert found["histogram"].nll is None and "at least 15 items" in (found["histogram"].reason or "")
