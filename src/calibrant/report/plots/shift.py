"""Figures under shift: type × severity as a heat map, curves along severity and frequency, entropies."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant.report.plots.style import (
    COLOURS,
    DASHED,
    SERIES,
    as_they_are,
    dress,
    figure_of,
    legend,
    line,
    new_axes,
    outline,
    percent_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from calibrant.types import Estimate

FAINT, STRONG = 0.06, 0.9
"""Opacity of the best and of the worst tile."""
LEAST = {"percent": 0.2, "plain": 0.5}
"""Least difference between the faintest and the strongest red: if all is nearly as good as clean, nothing is red."""


def heatmap(
    values: Mapping[tuple[str, int], float | None],
    *,
    title: str,
    better: str = "high",
    percent: bool = True,
    ax: Axes | None = None,
) -> Axes:
    """Draw types as rows and severities as columns (0: clean); worse values are redder, each tile shows its number."""
    types = list(dict.fromkeys(c for c, s in values if s))
    severities = sorted({s for _, s in values})
    ax = ax or new_axes(1.9 + 0.56 * len(severities), 0.75 + 0.235 * len(types))
    known = [v for v in values.values() if v is not None and math.isfinite(v)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    span = max(high - low, LEAST["percent" if percent else "plain"])
    best = high if better == "high" else low
    for row, name in enumerate(types):
        for column, severity in enumerate(severities):
            value = values.get(("", 0)) if severity == 0 else values.get((name, severity))
            _tile(ax, row, column, value, best, span, percent)
    ax.set_xlim(-0.5, len(severities) - 0.5)
    ax.set_ylim(len(types) - 0.5, -0.5)
    ax.set_xticks(range(len(severities)), ["clean" if s == 0 else str(s) for s in severities])
    ax.set_yticks(range(len(types)), [t.replace("_", " ") for t in types])
    ax.tick_params(colors=COLOURS["ink"], labelsize=8.5)
    ax.set_title(title, fontsize=10, color=COLOURS["ink"], loc="left")
    as_they_are(ax)
    ax.set_xlabel("severity")
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    return ax


def _tile(ax: Axes, row: int, column: int, value: float | None, best: float, span: float, percent: bool) -> None:
    from matplotlib.patches import Rectangle

    if value is None or not math.isfinite(value):
        ax.text(column, row, "–", ha="center", va="center", fontsize=8, color=COLOURS["muted"])
        return
    alpha = FAINT + (STRONG - FAINT) * abs(value - best) / span
    tile = Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, facecolor=COLOURS["bad"], alpha=alpha, linewidth=0)
    ax.add_patch(tile)
    text = f"{100 * value:.0f}" if percent else f"{value:.2f}"
    colour = "#ffffff" if alpha > 0.6 else COLOURS["ink"]
    ax.text(column, row, text, ha="center", va="center", fontsize=8, color=colour)


def severity_curves(
    rows: Mapping[str, Mapping[int, float | None]], *, label: str, percent: bool = True, ax: Axes | None = None
) -> Axes:
    """Draw one line per calibrator over the severities."""
    ax = ax or new_axes(4.6, 2.9)
    for i, (name, row) in enumerate(rows.items()):
        at = [s for s, v in row.items() if v is not None]
        heights = [v for v in row.values() if v is not None]
        # the first line is broad and pale, because a map that changes nothing is drawn on top of it
        style: dict[str, Any] = {"linewidth": 5.0, "alpha": 0.35} if i == 0 else {}
        style["linestyle"] = "-" if i < len(SERIES) else "--"
        line(ax, at, heights, SERIES[i % len(SERIES)], name, marker="o", markersize=3.5, **style)
    at = sorted({s for row in rows.values() for s in row})
    ax.set_xticks(at, ["clean" if s == 0 else str(s) for s in at])
    ax.set_xlabel("severity")
    ax.set_ylabel(label)
    ax.set_ylim(0, None)
    if percent:
        percent_axis(ax, "y")
    legend(ax, loc="upper left")
    return ax


def frequency_curve(accuracy: Mapping[float, Estimate], clean: float, *, ax: Axes | None = None) -> Axes:
    """Draw the accuracy under noise of each frequency (SS Fig. 6), with intervals; dashed: without noise."""
    ax = ax or new_axes(4.6, 2.7)
    known = {f: e for f, e in sorted(accuracy.items()) if e.value is not None}
    values = [float(e.value or 0) for e in known.values()]
    ax.axhline(clean, **DASHED)
    banded = all(e.low is not None for e in known.values())
    low, high = ([getattr(e, end) for e in known.values()] if banded else None for end in ("low", "high"))
    line(ax, list(known), values, "accent", low=low, high=high, marker="o", markersize=3.5)
    ax.set_xlim(0, max(accuracy) * 1.02)
    ax.set_ylim(0, 1)
    ax.set_xlabel("frequency of the noise, in units of π")
    ax.set_ylabel("accuracy")
    percent_axis(ax, "y")
    return ax


def entropy_histograms(
    entropies: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]], k: int, *, cells: int = 30
) -> Axes:
    """Draw histograms of the entropy of familiar items (key "") and of each foreign set (AR Fig. 4)."""
    from matplotlib.figure import Figure

    foreign = [name for name in entropies if name]
    columns = 3 if len(foreign) == 3 else min(2, len(foreign))  # three sets fill one row
    rows = -(-len(foreign) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.1 * rows), layout="constrained")
    edges = np.linspace(0, math.log(k), cells + 1)
    first = None
    for i, name in enumerate(foreign):
        ax = dress(figure.add_subplot(rows, columns, i + 1))
        first = first or ax
        for key, colour, label in (("", "good", "familiar"), (name, "bad", "foreign")):
            share = np.histogram(entropies[key], edges)[0] / max(1, len(entropies[key]))
            outline(ax, share, edges, colour, label)
        ax.set_title(name.replace("_", " "), fontsize=9.5, color=COLOURS["ink"], loc="left")
        as_they_are(ax)
        ax.set_xlim(0, math.log(k))
        ax.set_ylim(0, None)
        if i >= len(foreign) - columns:
            ax.set_xlabel("entropy, nats")
        if i % columns == 0:
            ax.set_ylabel("share of items")
        if i == 0:
            legend(ax, loc="upper right")
    assert first is not None and figure_of(first) is figure
    return first
