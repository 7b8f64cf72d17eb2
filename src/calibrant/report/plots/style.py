"""The common style of all figures: colours that are legible on white and near-black, few lines, no boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "ink": "#1b2230",
    "muted": "#6b7486",
    "grid": "#d9dee7",
    "accent": "#2f6fde",
    "good": "#16855b",
    "bad": "#d1435b",
    "second": "#b7791f",
}
"""Name → colour. `svg.to_svg` replaces each by the CSS variable of the same name."""

SERIES = ("accent", "second", "good", "bad", "muted")
"""Order of colours when several predictors share a figure."""


def new_axes(width: float = 4.6, height: float = 3.2) -> Axes:
    """Return axes on a new figure, outside pyplot's registry."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return dress(figure.add_subplot())


def side_by_side(columns: int, rows: int, width: float = 1.75) -> Sequence[Axes]:
    """Return axes side by side on a new figure, high enough for this many rows of dots."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(width * columns + 1.0, 0.38 * rows + 0.95), layout=ConstrainedLayoutEngine(wspace=0.09))
    return [dress(ax) for ax in np.ravel(figure.subplots(1, max(columns, 1)))]


def dress(ax: Axes) -> Axes:
    """Style the axes like the report: transparent, two spines, a light grid."""
    ax.patch.set_alpha(0)
    figure_of(ax).patch.set_alpha(0)
    ax.spines[["top", "right"]].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(COLOURS["grid"])
    ax.tick_params(colors=COLOURS["muted"], labelsize=9, length=0, pad=5)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_color(COLOURS["muted"])
        label.set_fontsize(9.5)
    ax.grid(True, color=COLOURS["grid"], linewidth=0.7)
    ax.set_axisbelow(True)
    return ax


def figure_of(ax: Axes) -> Figure:
    from matplotlib.figure import Figure

    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure


def percent_axis(ax: Axes, which: str = "both") -> None:
    """Label the ticks in percent, with only the digits that a tick needs: 0.975 → '97.5%', 0.95 → '95%'."""
    for axis, name in ((ax.xaxis, "x"), (ax.yaxis, "y")):
        if which in ("both", name):
            axis.set_major_formatter(lambda at, _: f"{round(100 * at, 8):zg}%".replace("-", "\N{MINUS SIGN}"))


def scale(*names: str) -> Any:
    """Return a colour map through these colours."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(" ".join(names), [COLOURS[name] for name in names])


def line(
    ax: Axes, x: Any, y: Any, colour: str, label: str | None = None, *, low: Any = None, high: Any = None, **style: Any
) -> None:
    """Draw a line in a colour of the report, with a band if `low` and `high` are given."""
    if low is not None:
        ax.fill_between(x, low, high, color=COLOURS[colour], alpha=0.15, linewidth=0)
    ax.plot(x, y, color=COLOURS[colour], label=shown(label), **{"linewidth": 1.6, **style})


def outline(ax: Axes, heights: Any, edges: Any, colour: str, label: str | None = None) -> None:
    """Draw a histogram as a pale area with an outline, so that several can overlap."""
    ax.stairs(heights, edges, fill=True, color=COLOURS[colour], alpha=0.18)
    ax.stairs(heights, edges, color=COLOURS[colour], linewidth=1.4, label=shown(label))


DASHED: Any = {"color": COLOURS["muted"], "linewidth": 1, "dashes": (4, 3)}
"""A line to compare with: the diagonal, zero, what would be without."""


def legend(ax: Axes, **options: Any) -> None:
    drawn = ax.legend(frameon=False, fontsize=9, labelcolor=COLOURS["ink"], **options)
    for text in drawn.get_texts():
        text.set_parse_math(False)  # a dollar sign in a name starts no formula


def as_they_are(ax: Axes) -> None:
    """Show ticks and titles as plain text, not as formulas, because they may be names."""
    for text in (*ax.get_xticklabels(), *ax.get_yticklabels(), *(ax.title, ax._left_title)):  # type: ignore[attr-defined]
        text.set_parse_math(False)


def shown(name: str | None) -> str | None:
    """Return the name as a legend shows it: matplotlib leaves out names that begin with an underscore."""
    return f" {name}" if name is not None and name.startswith("_") else name
