"""Calibration by level of adversarial robustness (AR Fig. 1, 2), and the path of ε_r over the epochs of AR-AdaLS."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from calibrant.diagnostics.levels import ByLevel
from calibrant.report.plots.style import COLOURS, SERIES, legend, new_axes, percent_axis
from calibrant.types import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXIS = "robustness level, from easily attacked to robust"


def level_accuracy(found: ByLevel, *, ax: Axes | None = None) -> Axes:
    """Accuracy and confidence of the predicted class in each level (Fig. 1, top): the room between is the gap."""
    ax = ax or new_axes()
    _line(ax, [row.confidence for row in found.rows], "bad", "confidence")
    _line(ax, [row.accuracy for row in found.rows], "accent", "accuracy")
    at = np.arange(1, len(found.rows) + 1)
    accuracy, confidence = (_values([getattr(row, m) for row in found.rows]) for m in ("accuracy", "confidence"))
    ax.fill_between(at, accuracy, confidence, color=COLOURS["bad"], alpha=0.08, linewidth=0)
    return _finish(ax, len(found.rows), "accuracy and confidence")


def level_error(found: Sequence[ByLevel], what: Literal["ece", "variance"] = "ece", *, ax: Axes | None = None) -> Axes:
    """ECE, or variance over runs, in each level (Fig. 1, bottom; Fig. 2 c and d), one line a predictor."""
    ax = ax or new_axes()
    levels = 1
    for i, each in enumerate(found):
        values = [getattr(row, what) for row in each.rows]
        if any(v is None for v in values):
            continue
        _line(ax, values, SERIES[i % len(SERIES)], each.name or f"#{i + 1}")
        levels = max(levels, len(values))
    ax.set_ylim(bottom=0)
    words = {"ece": "ECE of the level", "variance": "variance over runs"}
    if what == "variance":
        ax = _finish(ax, levels, words[what], percent=False)
    else:
        _finish(ax, levels, words[what])
    return ax


def epsilon_path(epsilon: Sequence[Sequence[float]], *, ax: Axes | None = None) -> Axes:
    """ε_r after each epoch, a line a level (a row of `epsilon` per epoch, the first the start): dark is unrobust."""
    ax = ax or new_axes(5.2, 3.2)
    path = np.asarray(epsilon, dtype=float)
    count = path.shape[1]
    for r in range(count):
        share = r / max(count - 1, 1)
        label = {0: "least robust level" if count > 1 else "all items", count - 1: "most robust level"}.get(r)
        ends = r in (0, count - 1)
        colour = COLOURS["bad"] if r == 0 else COLOURS["good"] if r == count - 1 else COLOURS["muted"]
        ax.plot(path[:, r], color=colour, linewidth=1.7 if ends else 0.9, alpha=1 if ends else 0.9 - 0.5 * share,
                label=label if count > 1 or r == 0 else None)  # fmt: skip
    ax.set_xlabel("epoch")
    ax.set_ylabel("smoothing ε of the level")
    ax.set_ylim(bottom=0)
    ax.set_xlim(0, max(len(path) - 1, 1))
    legend(ax)
    return ax


def _line(ax: Axes, found: Sequence[Estimate], colour: str, label: str) -> None:
    at = np.arange(1, len(found) + 1)
    value = _values(found)
    low = np.array([value[i] if e.low is None else e.low for i, e in enumerate(found)])
    high = np.array([value[i] if e.high is None else e.high for i, e in enumerate(found)])
    ax.fill_between(at, low, high, color=COLOURS[colour], alpha=0.12, linewidth=0)
    ax.plot(at, value, color=COLOURS[colour], linewidth=1.6, marker="o", markersize=3.5, label=label)


def _values(found: Sequence[Estimate]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([np.nan if e.value is None else e.value for e in found])


def _finish(ax: Axes, levels: int, ylabel: str, percent: bool = True) -> Axes:
    ax.set_xticks(range(1, levels + 1))
    ax.set_xlabel(AXIS)
    ax.set_ylabel(ylabel)
    if percent:
        percent_axis(ax, "y")
    legend(ax)
    return ax
