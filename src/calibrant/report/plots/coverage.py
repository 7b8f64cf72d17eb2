"""Risk–coverage and accuracy–coverage curves, which accept the surest items first, and the sizes of prediction sets.

The band is a pointwise Wilson interval; curves with a label share their axes and have none. Curves are thinned to a few
hundred points, which is more than the pixels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.functional.binomial import Floats, wilson
from calibrant.functional.ranking import accuracy_coverage as curve
from calibrant.functional.ranking import rank, run_weights
from calibrant.functional.scores import Scores
from calibrant.report.plots.style import COLOURS, DASHED, legend, line, new_axes, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 240


def coverage_curve(scores: Scores, points: int = POINTS) -> tuple[Floats, Floats]:
    """Return (coverage, accuracy of the accepted), thinned evenly in coverage with both ends kept."""
    good, bad = run_weights(rank(scores.log_error), scores.correct)
    coverage, accuracy = (t[0].numpy() for t in curve(good, bad))
    at = np.unique(np.searchsorted(coverage, np.linspace(coverage[0], 1, points) - 1e-12))
    return coverage[at], accuracy[at]


def risk_coverage(
    scores: Scores, *, ax: Axes | None = None, label: str | None = None, colour: str = "accent", effective: float = 1.0
) -> Axes:
    """Draw the error rate of the accepted against their share; dashed: a perfect ordering at this accuracy."""
    ax = ax or new_axes()
    _band(ax, scores, effective, colour, label, risk=True)
    right = float(scores.correct.double().mean())
    grid = np.linspace(max(right, 1e-9), 1, 40)
    ax.plot([0, *grid], [0, *np.maximum(1 - right / grid, 0)], **DASHED)
    ax.set_ylabel("error rate of what is accepted")
    return _finish(ax, label)


def accuracy_coverage(
    scores: Scores, *, ax: Axes | None = None, label: str | None = None, colour: str = "accent", effective: float = 1.0
) -> Axes:
    """Draw the accuracy of the accepted against their share."""
    ax = ax or new_axes()
    _band(ax, scores, effective, colour, label, risk=False)
    ax.set_ylabel("accuracy of what is accepted")
    return _finish(ax, label)


def _band(ax: Axes, scores: Scores, effective: float, colour: str, label: str | None, risk: bool) -> None:
    coverage, accuracy = coverage_curve(scores)
    n = scores.n * effective
    low, high = wilson(accuracy * coverage * n, coverage * n)
    if risk:
        accuracy, low, high = 1 - accuracy, 1 - high, 1 - low
    alone = len(coverage) == 1  # all confidences are equal
    style = {"marker": "o" if alone else None, "clip_on": not alone}
    band = {"low": low, "high": high} if label is None else {}  # bands of several curves would hide each other
    line(ax, coverage, accuracy, colour, label, **band, **style)
    # the first few items have intervals from 0 to 1, which would set the scale
    solid = coverage * n >= min(50.0, n)
    top, bottom = float(np.max(high[solid])), float(np.min(low[solid]))
    old = ax.get_ylim() if len(ax.lines) > 1 else (bottom, top)
    ax.set_ylim(0 if risk else min(bottom, old[0]), max(top, old[1], 1e-3) if risk else 1.0)


def _finish(ax: Axes, label: str | None) -> Axes:
    ax.set_xlim(0, 1)
    ax.set_xlabel("coverage: share of items accepted, surest first")
    percent_axis(ax)
    if label is not None:
        legend(ax, loc="best")
    return ax


def set_sizes(rows: Sequence[Mapping[str, Any]], *, ax: Axes | None = None) -> Axes:
    """Draw how many sets of each size hold the truth, from the rows of `Judgement.tables["by_size"]`."""
    ax = ax or new_axes()
    items = [row["items"] for row in rows]
    held = [row["items"] * row["coverage"].value for row in rows]
    missed = [n - h for n, h in zip(items, held, strict=True)]
    places = range(len(rows))
    ax.bar(places, held, color=COLOURS["good"], alpha=0.7, label="holds the truth")
    ax.bar(places, missed, bottom=held, color=COLOURS["bad"], alpha=0.7, label="misses it")
    ax.set_xticks(list(places), [row["size"] for row in rows])
    ax.grid(False, axis="x")
    ax.set_xlabel("classes in the set")
    ax.set_ylabel("items")
    legend(ax, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)  # above the bars, which can be anywhere
    return ax
