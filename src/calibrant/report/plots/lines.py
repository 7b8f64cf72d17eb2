"""Curves and histograms of several networks in one figure: spectra, feature maps, epochs, attacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from calibrant.report.plots.style import SERIES, as_they_are, legend, line, new_axes, outline, percent_axis, scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Curve:
    """One network's line, with its band from `low` to `high`."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    dashed: bool = False
    colour: int | None = None  # index in the series of colours; by default the curve's own index

    @classmethod
    def of(cls, name: str, x: Sequence[float], found: Sequence[Mapping[str, Any]], colour: int | None = None) -> Curve:
        """Return a curve from estimates as JSON has them; where there is no interval, the band is the line."""
        y = [e["value"] for e in found]
        low, high = (
            [v if e[end] is None else e[end] for e, v in zip(found, y, strict=True)] for end in ("low", "high")
        )
        return cls(name, x, y, low, high, colour=colour)


def curves(
    found: Sequence[Curve], xlabel: str, ylabel: str, *, percent: bool = False, log: bool = False, marks: bool = True
) -> Axes:
    """Draw lines with bands, one colour per network."""
    ax = new_axes(5.2, 3.4)
    for i, each in enumerate(found):
        colour = SERIES[(i if each.colour is None else each.colour) % len(SERIES)]
        style: dict[str, Any] = {"dashes": (4, 3)} if each.dashed else {}
        style |= {"marker": "o", "markersize": 3.2} if marks else {}
        line(ax, each.x, each.y, colour, each.name, low=each.low, high=each.high, **style)
    ax.locator_params(axis="x", nbins=6)  # more labels would touch
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if log:
        plain_log(ax, "log")
    if percent:
        percent_axis(ax, "y")
    legend(ax)
    return ax


def plain_log(ax: Axes, scale: str, **options: Any) -> None:
    """Make the y axis logarithmic, with plain numbers as ticks: the page draws no formulas."""
    from matplotlib.ticker import LogLocator

    ax.set_yscale(scale, **options)
    low, high = ax.get_ylim()
    if scale == "log" and high < 1000 * low:  # powers of ten alone would be one or two ticks
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.yaxis.minorticks_off()


def by_depth(found: Sequence[Curve], layers: Sequence[str], ylabel: str) -> Axes:
    """Draw lines over the layers of networks; as many layers are named as there is room for."""
    ax = curves(found, "", ylabel)
    apart = max(1, -(-len(layers) // 14))
    ax.set_xticks(range(0, len(layers), apart), [layers[i] for i in range(0, len(layers), apart)])
    ax.tick_params(axis="x", rotation=60)
    as_they_are(ax)
    return ax


def histogram(named: Sequence[tuple[str, Sequence[float]]], xlabel: str, ylabel: str, *, cells: int = 30) -> Axes:
    """Draw the values of each network as a histogram, all in the same cells and over each other."""
    ax = new_axes(5.2, 3.4)
    every = np.concatenate([np.asarray(values, float) for _, values in named])
    low, high = float(every.min()), float(every.max())
    if high == low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, cells + 1)
    for i, (name, values) in enumerate(named):
        outline(ax, np.histogram(np.asarray(values, float), edges)[0], edges, SERIES[i % len(SERIES)], name)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.set_ylim(0, None)
    ax.locator_params(axis="y", integer=True)
    legend(ax)
    return ax


def stacked(table: NDArray[np.int64], edges: Sequence[float], names: Sequence[str], xlabel: str) -> Axes:
    """Draw counts [groups, cells] on top of each other, from early (blue) to late (red)."""
    from matplotlib.colors import to_hex

    ax = new_axes(5.2, 3.2)
    colours = scale("accent", "second", "bad")
    below = np.zeros(table.shape[1])
    for i, (row, name) in enumerate(zip(table, names, strict=True)):
        colour = to_hex(colours(i / max(len(names) - 1, 1)))
        ax.stairs(below + row, edges, baseline=below, fill=True, color=colour, alpha=0.75, label=name)
        below = below + row
    ax.set_xlabel(xlabel)
    ax.set_ylabel("training samples")
    legend(ax)
    return ax
