"""Type × severity as a heat map: how a model does under every corruption, one number per tile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from calibrant.report.plots.style import COLOURS, as_they_are, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    """Rows are types, columns severities (0: clean); the worse, the stronger the red. Every tile shows its number."""
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
