"""Dots with their intervals, one small panel per metric: of several reports, or of differences beside a paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibrant.display import HEADLINE
from calibrant.metrics import METRICS
from calibrant.report.numbers import interval, is_percent, value
from calibrant.report.plots.style import COLOURS, DASHED, SERIES, as_they_are, dress, percent_axis, side_by_side
from calibrant.types import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHORT = {"gap": "gap", "ece": "ECE", "nll": "NLL", "brier": "Brier", "auroc": "AUROC"}
BETTER = {"low": "lower is better", "high": "higher is better", "zero": "zero is best"}
BEYOND = 3.0
"""Differences of more than this many times the largest reported one are drawn as an arrow at the edge."""


def forest(
    reports: Mapping[str, Report],
    *,
    names: Sequence[str] = HEADLINE,
    axes: Sequence[Axes] | None = None,
    colours: Sequence[str] = SERIES,
) -> Sequence[Axes]:
    """Draw one panel per metric, with its own scale, and one row per report."""
    present = [n for n in names if any(n in r and r[n].value is not None for r in reports.values())]
    axes = side_by_side(len(present), len(reports)) if axes is None else axes  # an array of axes has no truth value
    for i, (ax, name) in enumerate(zip(axes, present, strict=False)):
        better = METRICS[name].better
        ax.set_title(f"{SHORT.get(name, name)}\n{BETTER[better]}", fontsize=8.5, color=COLOURS["muted"])
        if better == "zero":
            ax.axvline(0, **DASHED)
        for row, report in enumerate(reports.values()):
            e = report.metrics.get(name)
            if e is not None and e.value is not None:
                tip = f"{METRICS[name].title} {value(name, e.value)} ({interval(name, e)})"
                _row(ax, row, e.value, e.low, e.high, COLOURS[colours[row % len(colours)]], tip)
        _rows(ax, list(reports) if i == 0 or len(axes) == 1 else [""] * len(reports))
        ax.locator_params(axis="x", nbins=2, min_n_ticks=2)
        ax.tick_params(axis="x", labelsize=8)
        ax.margins(x=0.12)
        if is_percent(name):
            percent_axis(ax, "x")
        low, high = sorted(ax.get_xlim())
        ticks = [t for t in ax.get_xticks() if low <= t <= high]
        if len(ticks) > 2:  # a small panel has room for two labels, and the locator gives three at times
            ax.set_xticks([ticks[0], ticks[-1]])
    return axes


@dataclass(frozen=True)
class Difference:
    """One row; `colour` is a name of `style.COLOURS`, and `tip` is the text under the pointer."""

    label: str
    metric: str
    reported: float | None
    mean: float
    low: float | None
    high: float | None
    colour: str
    tip: str


def differences(found: Sequence[Difference]) -> Axes:
    """Draw each difference: a diamond for the paper's, a dot with its interval for ours."""
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(d.metric for d in found))
    heights = [0.24 * sum(d.metric == m for d in found) + 0.75 for m in metrics]
    figure = Figure(figsize=(7.6, sum(heights)), layout="constrained")
    grid = np.ravel(figure.subplots(len(metrics), 1, squeeze=False, height_ratios=heights))
    for ax, metric in zip(grid, metrics, strict=True):
        _differences(dress(ax), metric, [d for d in found if d.metric == metric])
    first: Axes = grid[0]
    return first


def _differences(ax: Axes, metric: str, found: Sequence[Difference]) -> None:
    known = [abs(d.reported) for d in found if d.reported is not None]
    edge = BEYOND * max(known) if known else np.inf
    ax.axvline(0, **DASHED)
    for y, d in enumerate(found):
        if d.reported is not None:
            ax.plot([d.reported], [y], "D", color="none", markeredgecolor=COLOURS["ink"], markersize=5)
        low, high = (None if end is None else float(np.clip(end, -edge, edge)) for end in (d.low, d.high))
        shape = "o" if abs(d.mean) <= edge else "<" if d.mean < 0 else ">"
        _row(ax, y, float(np.clip(d.mean, -edge, edge)), low, high, COLOURS[d.colour], d.tip, shape)
    ax.set_title(f"difference in {SHORT.get(metric, metric)}", fontsize=8.5, color=COLOURS["muted"], loc="left")
    _rows(ax, [d.label for d in found])
    ax.tick_params(axis="both", labelsize=8)
    ax.margins(x=0.08)
    if is_percent(metric):
        percent_axis(ax, "x")


def _row(
    ax: Axes, y: int, at: float, low: float | None, high: float | None, colour: str, tip: str, shape: str = "o"
) -> None:
    if low is not None and high is not None:
        ax.plot([low, high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt")
    (dot,) = ax.plot([at], [y], shape, color=colour, markersize=5)
    dot.set_gid(f"tip:{tip}")


def _rows(ax: Axes, names: Sequence[str]) -> None:
    """Name the rows, the first at the top."""
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.set_yticks(range(len(names)), names)
    as_they_are(ax)
    ax.grid(False, axis="y")
