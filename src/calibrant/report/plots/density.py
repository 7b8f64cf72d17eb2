"""Density of confidence for correct and for incorrect answers (DS Fig. 2): the less they overlap, the better a
threshold works. Each curve is normalised separately, so that rare errors are visible."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from calibrant.functional.scores import Scores
from calibrant.report.plots.style import COLOURS, legend, new_axes, percent_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def confidence_density(scores: Scores, *, ax: Axes | None = None, cells: int = 40) -> Axes:
    """Share of each group's items per cell of confidence; what is drawn is a histogram, not a smoothed guess."""
    ax = ax or new_axes()
    conf, right = scores.confidence.numpy(), scores.correct.numpy()
    names = ("correct", "incorrect") if scores.about == "top label" else ("positive", "negative")
    edges = np.linspace(0, 1, cells + 1)
    for name, mask, colour in ((names[0], right, "good"), (names[1], ~right, "bad")):
        if not mask.any():
            continue
        share = np.histogram(conf[mask], edges)[0] / mask.sum()
        ax.stairs(share, edges, fill=True, color=COLOURS[colour], alpha=0.18)
        ax.stairs(share, edges, color=COLOURS[colour], linewidth=1.4, label=f"{name} ({int(mask.sum()):,})")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, None)
    ax.set_xlabel("confidence")
    ax.set_ylabel("share of the group")
    percent_axis(ax)
    legend(ax, loc="upper left")
    return ax
