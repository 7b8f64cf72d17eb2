"""Differences as papers report them and as they were measured: one row per comparison, one panel per metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibrant.report.numbers import is_percent
from calibrant.report.plots.style import COLOURS, as_they_are, dress, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BEYOND = 3.0
"""Differences of more than this many times the largest reported one are drawn as an arrow at the edge."""


@dataclass(frozen=True)
class Difference:
    """One row; `colour` is a name of `style.COLOURS`, `tip` what is shown when the pointer rests on it."""

    label: str
    metric: str
    reported: float | None
    mean: float
    low: float | None
    high: float | None
    colour: str
    tip: str


def differences(found: Sequence[Difference]) -> Axes:
    """A diamond is the paper's difference, a dot ours with its interval."""
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(d.metric for d in found))
    heights = [0.24 * sum(d.metric == m for d in found) + 0.75 for m in metrics]
    figure = Figure(figsize=(7.6, sum(heights)), layout="constrained")
    grid = figure.subplots(len(metrics), 1, squeeze=False, height_ratios=heights)
    for ax, metric in zip(np.ravel(grid), metrics, strict=True):
        _panel(dress(ax), metric, [d for d in found if d.metric == metric])
    first: Axes = np.ravel(grid)[0]
    return first


def _panel(ax: Axes, metric: str, rows: Sequence[Difference]) -> None:
    known = [abs(d.reported) for d in rows if d.reported is not None]
    edge = BEYOND * max(known) if known else np.inf
    ax.axvline(0, color=COLOURS["muted"], linewidth=1, dashes=(4, 3))
    for y, row in enumerate(rows):
        colour = COLOURS[row.colour]
        if row.reported is not None:
            ax.plot([row.reported], [y], "D", color="none", markeredgecolor=COLOURS["ink"], markersize=5)
        if row.low is not None and row.high is not None:
            ends = np.clip([row.low, row.high], -edge, edge)
            ax.plot(ends, [y, y], color=colour, linewidth=2.2, solid_capstyle="butt")
        shape = "o" if abs(row.mean) <= edge else "<" if row.mean < 0 else ">"
        (dot,) = ax.plot([np.clip(row.mean, -edge, edge)], [y], shape, color=colour, markersize=5)
        dot.set_gid(f"tip:{row.tip}")
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_yticks(range(len(rows)), [d.label for d in rows])
    ax.set_title(f"difference in {metric}", fontsize=8.5, color=COLOURS["muted"], loc="left")
    as_they_are(ax)
    ax.grid(False, axis="y")
    ax.tick_params(axis="both", labelsize=8)
    ax.margins(x=0.08)
    if is_percent(metric):
        percent_axis(ax, "x")
