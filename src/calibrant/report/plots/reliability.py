"""Reliability diagram, histogram and density of confidence (DS Fig. 2).

A bar below the diagonal is overconfident. Each bin's accuracy has a Wilson interval, because a
bin with twelve items says little, and the figure must show that. Of the density: the less correct and incorrect answers
overlap, the better a threshold works. Each curve is normalised separately, so that rare errors are visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibrant.functional.binning import BinSums
from calibrant.functional.binomial import wilson
from calibrant.functional.decomposition import event_bins
from calibrant.functional.scores import Scores
from calibrant.report.plots.style import (
    COLOURS,
    DASHED,
    dress,
    legend,
    new_axes,
    outline,
    percent_axis,
    shown,
    side_by_side,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def reliability(
    data: Scores | BinSums,
    *,
    ax: Axes | None = None,
    effective: float = 1.0,
    label: str | None = None,
    colour: str = "accent",
    bars: bool = True,
) -> Axes:
    """Draw the accuracy of each bin at its mean confidence. `effective` is the share of independent items (groups)."""
    ax = ax or new_axes(4.2, 3.6)
    sums = data if isinstance(data, BinSums) else event_bins(data)
    bins = sums.count.shape[-1]
    held = sums.count[0].numpy() > 0
    n, conf, acc = (t[0].numpy()[held] for t in (sums.count, sums.mean_confidence, sums.accuracy))
    low, high = wilson(acc * n * effective, n * effective)
    left = np.flatnonzero(held) / bins
    if bars:
        for edge, size, c, a, lo, hi in zip(left, n, conf, acc, low, high, strict=True):
            side = "bad" if c > a else "good"
            (bar,) = ax.bar(edge, abs(a - c), 1 / bins, bottom=min(a, c), align="edge", color=COLOURS[side], alpha=0.22)
            bar.set_gid(_tip(edge, edge + 1 / bins, size, c, a, lo, hi))
    ax.plot([0, 1], [0, 1], **DASHED)
    spread = np.clip(np.vstack([acc - low, high - acc]), 0, None)
    line = {"fmt": "o-", "markersize": 4, "linewidth": 1.2, "elinewidth": 1.4, "capsize": 0}
    ax.errorbar(conf, acc, yerr=spread, color=COLOURS[colour], label=shown(label), **line)  # type: ignore[arg-type]
    ax.set_xlim(0, 1)
    ax.set_ylim(0, 1.005)
    ax.set_xlabel("confidence: how sure it says it is")
    ax.set_ylabel("accuracy: how often it is right")
    percent_axis(ax)
    if label is not None:
        legend(ax, loc="upper left")
    return ax


def confidence_histogram(data: Scores | BinSums, *, ax: Axes | None = None) -> Axes:
    """Draw the share of the items in each bin of confidence."""
    ax = ax or new_axes(4.2, 1.2)
    sums = data if isinstance(data, BinSums) else event_bins(data)
    bins = sums.count.shape[-1]
    share = (sums.count[0] / sums.total[0]).numpy()
    for b in np.flatnonzero(share):
        (bar,) = ax.bar(b / bins, share[b], 1 / bins, align="edge", color=COLOURS["muted"], alpha=0.55)
        bar.set_gid(f"tip:{100 * share[b]:.1f}% of the items: confidence {b / bins:.2f} to {(b + 1) / bins:.2f}")
    ax.set_xlim(0, 1)
    ax.set_ylabel("items")
    percent_axis(ax)
    return ax


def reliability_figure(data: Scores | BinSums, *, effective: float = 1.0) -> Axes:
    """Draw the diagram above the histogram, on one confidence axis; return the axes of the diagram."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 4.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    reliability(data, ax=dress(top), effective=effective)
    confidence_histogram(data, ax=dress(bottom))
    top.set_xlabel("")
    bottom.set_xlabel("confidence: how sure it says it is")
    assert not isinstance(top, np.ndarray)
    return top  # type: ignore[no-any-return]


def before_after(
    before: Scores | BinSums, after: Scores | BinSums, *, axes: Sequence[Axes] | None = None
) -> Sequence[Axes]:
    """Draw two reliability diagrams side by side, with the same scales."""
    axes = side_by_side(2, 6, width=3.1) if axes is None else axes  # an array of axes has no truth value
    for ax, data, title in zip(axes, (before, after), ("before", "after"), strict=True):
        reliability(data, ax=ax)
        ax.set_title(title, fontsize=10, color=COLOURS["muted"])
    axes[1].set_ylabel("")
    return axes


def _tip(left: float, right: float, n: float, conf: float, acc: float, low: float, high: float) -> str:
    return (
        f"tip:confidence {left:.2f} to {right:.2f}: {n:.0f} items, says {100 * conf:.1f}%, is right {100 * acc:.1f}% "
        f"(95% interval {100 * low:.1f} to {100 * high:.1f}%)"
    )


def confidence_density(scores: Scores, *, ax: Axes | None = None, cells: int = 40) -> Axes:
    """Draw histograms of the confidence of correct and of incorrect answers, each as shares of its own items."""
    ax = ax or new_axes()
    conf, right = scores.confidence.numpy(), scores.correct.numpy()
    names = ("correct", "incorrect") if scores.about == "top label" else ("positive", "negative")
    edges = np.linspace(0, 1, cells + 1)
    for name, mask, colour in ((names[0], right, "good"), (names[1], ~right, "bad")):
        if not mask.any():
            continue
        share = np.histogram(conf[mask], edges)[0] / mask.sum()
        outline(ax, share, edges, colour, f"{name} ({int(mask.sum()):,})")
    ax.set_xlim(0, 1)
    ax.set_ylim(0, None)
    ax.set_xlabel("confidence")
    ax.set_ylabel("share of the group")
    percent_axis(ax)
    legend(ax, loc="upper left")
    return ax
