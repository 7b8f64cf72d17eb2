"""Calibration by level of adversarial robustness (AR Fig. 1, 2), and the path of ε_r over the epochs of AR-AdaLS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from calibrant.errors import InputError
from calibrant.report.plots.style import COLOURS, SERIES, legend, line, new_axes, percent_axis, scale
from calibrant.types import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from calibrant.diagnostics.levels import ByLevel

AXIS = "robustness level, from easily attacked to robust"
MOST_NAMED = 12
"""Levels that fit into a legend; of more, only some are named."""


def level_accuracy(found: ByLevel, *, ax: Axes | None = None) -> Axes:
    """Draw the accuracy and the confidence in each level (Fig. 1, top); the area between them is the gap."""
    ax = ax or new_axes()
    _line(ax, [row.confidence for row in found.rows], "bad", "confidence")
    _line(ax, [row.accuracy for row in found.rows], "accent", "accuracy")
    at = np.arange(1, len(found.rows) + 1)
    accuracy, confidence = (_values([getattr(row, m) for row in found.rows]) for m in ("accuracy", "confidence"))
    ax.fill_between(at, accuracy, confidence, color=COLOURS["bad"], alpha=0.08, linewidth=0)
    return _finish(ax, len(found.rows), "accuracy and confidence")


def level_error(found: Sequence[ByLevel], what: Literal["ece", "variance"] = "ece", *, ax: Axes | None = None) -> Axes:
    """Draw the ECE, or the variance over runs, in each level (Fig. 1, bottom; Fig. 2 c, d), a line per predictor."""
    ax = ax or new_axes()
    levels = 1
    for i, each in enumerate(found):
        values = [getattr(row, what) for row in each.rows]
        if any(v is None for v in values):
            continue
        _line(ax, values, SERIES[i % len(SERIES)], each.name or f"#{i + 1}")
        levels = max(levels, len(values))
    if found and not ax.lines:
        raise InputError(f"no predictor has {what} by level; a variance needs several runs on the same items")
    ax.set_ylim(bottom=0)
    words = {"ece": "ECE of the level", "variance": "variance over runs"}
    return _finish(ax, levels, words[what], percent=what == "ece")


def epsilon_path(epsilon: Sequence[Sequence[float]], *, ax: Axes | None = None) -> Axes:
    """Draw ε_r after each epoch, one line per level (red: least robust). The first row is the start."""
    from matplotlib.colors import to_hex

    ax = ax or new_axes(5.2, 3.2)
    path = np.asarray(epsilon, dtype=float)
    count = path.shape[1]
    colours = scale("bad", "second", "good")
    apart = math.ceil(count / MOST_NAMED)
    for r in range(count):
        last = r == count - 1
        word = " (least robust)" if r == 0 else " (most robust)" if last else ""
        named = r % apart == 0 or last
        label = "all items" if count == 1 else f"{r + 1}{word}" if named else None
        ax.plot(path[:, r], color=to_hex(colours(r / max(count - 1, 1))), linewidth=1.5, label=label)
    ax.set_xlabel("epoch")
    ax.set_ylabel("smoothing ε of the level")
    ax.set_ylim(bottom=0)
    ax.set_xlim(0, max(len(path) - 1, 1))
    heading = {"title": "level", "title_fontsize": 9} if count > 1 else {}
    legend(ax, loc="center left", bbox_to_anchor=(1.0, 0.5), **heading)
    ax.get_legend().get_title().set_color(COLOURS["ink"])  # type: ignore[union-attr]
    return ax


def _line(ax: Axes, found: Sequence[Estimate], colour: str, label: str) -> None:
    at = np.arange(1, len(found) + 1)
    value = _values(found)
    low = np.array([value[i] if e.low is None else e.low for i, e in enumerate(found)])
    high = np.array([value[i] if e.high is None else e.high for i, e in enumerate(found)])
    line(ax, at, value, colour, label, low=low, high=high, marker="o", markersize=3.5)


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
