"""Figures, for users and for the report: pure functions `plot(data, *, ax=None) -> Axes`.

They use matplotlib's object-oriented interface only (no pyplot, no global state). The colours are those of the report
(`style.COLOURS`); `svg.to_svg` turns them into CSS variables, so that a figure follows the light or dark page.
"""

from calibrant.report.plots.coverage import accuracy_coverage, risk_coverage, set_sizes
from calibrant.report.plots.forest import forest
from calibrant.report.plots.levels import epsilon_path, level_accuracy, level_error
from calibrant.report.plots.pep import overfitting_curves, overfitting_scatter, sigma_errors, sigma_likelihood
from calibrant.report.plots.reliability import (
    before_after,
    confidence_density,
    confidence_histogram,
    reliability,
    reliability_figure,
)
from calibrant.report.plots.style import new_axes

__all__ = [
    "accuracy_coverage",
    "before_after",
    "confidence_density",
    "confidence_histogram",
    "epsilon_path",
    "forest",
    "level_accuracy",
    "level_error",
    "new_axes",
    "overfitting_curves",
    "overfitting_scatter",
    "reliability",
    "reliability_figure",
    "risk_coverage",
    "set_sizes",
    "sigma_errors",
    "sigma_likelihood",
]
