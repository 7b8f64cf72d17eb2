"""How many classes the prediction sets hold, and how many sets of each size miss the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from calibrant.report.plots.style import COLOURS, legend, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def set_sizes(rows: Sequence[Mapping[str, Any]], *, ax: Axes | None = None) -> Axes:
    """Rows of `Judgement.tables["by_size"]`: size, items, and the share of them whose set holds the truth."""
    ax = ax or new_axes()
    items = [row["items"] for row in rows]
    held = [row["items"] * row["coverage"].value for row in rows]
    missed = [n - h for n, h in zip(items, held, strict=True)]
    places = range(len(rows))
    ax.bar(places, held, color=COLOURS["good"], alpha=0.7, label="holds the truth")
    ax.bar(places, missed, bottom=held, color=COLOURS["bad"], alpha=0.7, label="misses it")
    ax.set_xticks(list(places), [row["size"] for row in rows])
    ax.grid(False, axis="x")
    ax.set_xlabel("classes in the set")
    ax.set_ylabel("items")
    legend(ax, loc="upper right")
    return ax
