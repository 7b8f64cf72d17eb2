"""Curves under shift: along the severity, along the frequency of noise, and the entropies of foreign items."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from calibrant.report.plots.style import (
    COLOURS,
    SERIES,
    as_they_are,
    dress,
    figure_of,
    legend,
    new_axes,
    percent_axis,
    shown,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from calibrant.types import Estimate


def severity_curves(
    rows: Mapping[str, Mapping[int, float | None]], *, label: str, percent: bool = True, ax: Axes | None = None
) -> Axes:
    """One line for each calibrator along the severity."""
    ax = ax or new_axes(4.6, 2.9)
    for i, (name, line) in enumerate(rows.items()):
        at = [s for s, v in line.items() if v is not None]
        colour, dash = COLOURS[SERIES[i % len(SERIES)]], "-" if i < len(SERIES) else "--"
        heights = [v for v in line.values() if v is not None]
        # the first lies broad and pale beneath: a map that changes nothing is drawn right on it
        width, alpha = (5.0, 0.35) if i == 0 else (1.6, 1.0)
        ax.plot(
            at,
            heights,
            color=colour,
            linestyle=dash,
            linewidth=width,
            alpha=alpha,
            marker="o",
            ms=3.5,
            label=shown(name),
        )
    at = sorted({s for line in rows.values() for s in line})
    ax.set_xticks(at, ["clean" if s == 0 else str(s) for s in at])
    ax.set_xlabel("severity")
    ax.set_ylabel(label)
    ax.set_ylim(0, None)
    if percent:
        percent_axis(ax, "y")
    legend(ax, loc="upper left")
    return ax


def frequency_curve(accuracy: Mapping[float, Estimate], clean: float, *, ax: Axes | None = None) -> Axes:
    """Accuracy under noise of one frequency (SS Fig. 6) with its intervals; dashed: without noise."""
    ax = ax or new_axes(4.6, 2.7)
    known = {f: e for f, e in sorted(accuracy.items()) if e.value is not None}
    values = [float(e.value or 0) for e in known.values()]
    ax.axhline(clean, color=COLOURS["muted"], linewidth=1, dashes=(4, 3))
    if all(e.low is not None for e in known.values()):
        low, high = ([float(getattr(e, end)) for e in known.values()] for end in ("low", "high"))
        ax.fill_between(list(known), low, high, color=COLOURS["accent"], alpha=0.15, linewidth=0)
    ax.plot(list(known), values, color=COLOURS["accent"], linewidth=1.6, marker="o", markersize=3.5)
    ax.set_xlim(0, max(accuracy) * 1.02)
    ax.set_ylim(0, 1)
    ax.set_xlabel("frequency of the noise, in units of π")
    ax.set_ylabel("accuracy")
    percent_axis(ax, "y")
    return ax


def entropy_histograms(
    entropies: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]], k: int, *, cells: int = 30
) -> Axes:
    """AR Fig. 4: entropies of familiar items (key "") and of each foreign set; higher outside is better."""
    from matplotlib.figure import Figure

    foreign = [name for name in entropies if name]
    columns = 3 if len(foreign) == 3 else min(2, len(foreign))  # three in a row leave no hole
    rows = -(-len(foreign) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.1 * rows), layout="constrained")
    edges = np.linspace(0, math.log(k), cells + 1)
    first = None
    for i, name in enumerate(foreign):
        ax = dress(figure.add_subplot(rows, columns, i + 1))
        first = first or ax
        for key, colour, label in (("", "good", "familiar"), (name, "bad", "foreign")):
            share = np.histogram(entropies[key], edges)[0] / max(1, len(entropies[key]))
            ax.stairs(share, edges, fill=True, color=COLOURS[colour], alpha=0.18)
            ax.stairs(share, edges, color=COLOURS[colour], linewidth=1.3, label=label)
        ax.set_title(name.replace("_", " "), fontsize=9.5, color=COLOURS["ink"], loc="left")
        as_they_are(ax)
        ax.set_xlim(0, math.log(k))
        ax.set_ylim(0, None)
        if i >= len(foreign) - columns:
            ax.set_xlabel("entropy, nats")
        if i % columns == 0:
            ax.set_ylabel("share of items")
        if i == 0:
            ax.legend(frameon=False, fontsize=8.5, labelcolor=COLOURS["ink"], loc="upper right")
    assert first is not None and figure_of(first) is figure
    return first
