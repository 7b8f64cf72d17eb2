"""PEP Fig. 3 from cells: the figure shows what the epochs say, and the table's ρ is scipy's."""

from __future__ import annotations

import pytest
from scipy.stats import spearmanr

from calibrant.diagnostics.overfitting import Epoch
from calibrant.report.plots.pep import overfitting_curves, overfitting_scatter

RUNS = [[Epoch(e, 1 / e, 0.5 + 0.1 * e * s, 0.01 * e, 0.5 + 0.05 * e * s) for e in range(1, 6)] for s in (1, 2)]


def test_points_are_the_gap_and_the_effect_of_each_epoch() -> None:
    flat = [e for run in RUNS for e in run]
    (drawn,) = (line for line in overfitting_scatter({"row": flat}).lines if str(line.get_label()).startswith("row"))
    assert list(drawn.get_xdata()) == [e.test_nll - e.train_nll for e in flat]
    assert list(drawn.get_ydata()) == [e.test_nll - e.pep_nll for e in flat]
    rho = spearmanr([e.overfitting for e in flat], [e.effect for e in flat]).statistic
    assert drawn.get_label() == f"row, ρ = {rho:.2f}".replace("-", "−")
    assert overfitting_scatter({"row": flat}, of="sigma").get_ylabel() == "σ*"


def test_curves_have_the_mean_over_seeds() -> None:
    lines = {str(line.get_label()): line for line in overfitting_curves(RUNS).lines}
    assert list(lines["PEP"].get_ydata()) == pytest.approx(
        [(a.pep_nll + b.pep_nll) / 2 for a, b in zip(*RUNS, strict=True)]
    )
