"""Metrics side by side with their intervals, one row per predictor; and the same predictor before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibrant.functional.binning import BinSums
from calibrant.functional.scores import Scores
from calibrant.metrics import METRICS
from calibrant.report.explain import HEADLINE
from calibrant.report.numbers import interval, is_percent, value
from calibrant.report.plots.reliability import reliability
from calibrant.report.plots.style import COLOURS, SERIES, as_they_are, dress, percent_axis
from calibrant.types import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHORT = {"gap": "gap", "ece": "ECE", "nll": "NLL", "brier": "Brier", "auroc": "AUROC"}
ARROWS = {"low": "lower is better", "high": "higher is better", "zero": "zero is best"}


def forest(
    reports: Mapping[str, Report],
    *,
    names: Sequence[str] = HEADLINE,
    axes: Sequence[Axes] | None = None,
    colours: Sequence[str] = SERIES,
) -> Sequence[Axes]:
    """One small panel per metric (each has its own scale), one row per report, dot and interval."""
    present = [n for n in names if any(n in r and r[n].value is not None for r in reports.values())]
    if axes is None:
        axes = _panels(len(present), len(reports))
    for i, (ax, name) in enumerate(zip(axes, present, strict=False)):
        ax.set_title(f"{SHORT.get(name, name)}\n{ARROWS[METRICS[name].better]}", fontsize=8.5, color=COLOURS["muted"])
        if METRICS[name].better == "zero":
            ax.axvline(0, color=COLOURS["muted"], linewidth=1, dashes=(4, 3))
        for row, report in enumerate(reports.values()):
            e = report.metrics.get(name)
            if e is None or e.value is None:
                continue
            colour = COLOURS[colours[row % len(colours)]]
            if e.low is not None and e.high is not None:
                ax.plot([e.low, e.high], [row, row], color=colour, linewidth=2.2, solid_capstyle="butt")
            (dot,) = ax.plot([e.value], [row], "o", color=colour, markersize=5)
            dot.set_gid(f"tip:{METRICS[name].title} {value(name, e.value)} ({interval(name, e)})")
        ax.set_ylim(len(reports) - 0.4, -0.6)
        ax.set_yticks(range(len(reports)), list(reports) if i == 0 or len(axes) == 1 else [""] * len(reports))
        as_they_are(ax)
        ax.grid(False, axis="y")
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


def before_after(
    before: Scores | BinSums, after: Scores | BinSums, *, axes: Sequence[Axes] | None = None
) -> Sequence[Axes]:
    """Two reliability diagrams side by side on the same axes."""
    if axes is None:
        axes = _panels(2, 6, width=3.1)
    for ax, data, title in zip(axes, (before, after), ("before", "after"), strict=True):
        reliability(data, ax=ax)
        ax.set_title(title, fontsize=10, color=COLOURS["muted"])
    axes[1].set_ylabel("")
    return axes


def _panels(columns: int, rows: int, width: float = 1.75) -> Sequence[Axes]:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width * columns + 1.0, 0.38 * rows + 0.95), layout=ConstrainedLayoutEngine(wspace=0.09))
    axes = np.atleast_1d(figure.subplots(1, max(columns, 1)))
    return [dress(ax) for ax in axes]
