"""The plot of the σ curve shows the measured points."""

from __future__ import annotations

from calibrant.ensembles.pep import PEP
from calibrant.ensembles.sigma import sigma_curve
from calibrant.report.plots import sigma_errors, sigma_likelihood


def test_the_curve_shows_the_measured_points(overfitted) -> None:
    curve = sigma_curve(PEP(overfitted.model, 0.0, 4, antithetic=True), overfitted.calibration)
    points = curve.points([0.0, 0.05, 0.1])
    drawn = next(line for line in sigma_likelihood(points).lines if str(line.get_label()).startswith("ensemble"))
    assert list(drawn.get_xdata()) == [0.0, 0.05, 0.1]
    assert list(drawn.get_ydata()) == [p.log_likelihood for p in points]
    ece, brier = sigma_errors(points).lines
    assert list(ece.get_ydata()) == [p.ece for p in points] and list(brier.get_ydata()) == [p.brier for p in points]
