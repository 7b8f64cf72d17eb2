"""A panel: one more section of the HTML report, for what only some reports have (σ curve, shifts, robustness).

A verb that knows more than predictions hands panels to `html.render(..., panels=[…])`. Everything is text and
figures; the page escapes the text and draws the figures in its own colours, so a panel cannot inject anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from calibrant.errors import InputError
from calibrant.report.plots.svg import to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Figure:
    """A drawing (any axes of its figure) and what it shows; `wide` takes the page's whole width."""

    axes: Axes
    caption: str
    wide: bool = False


@dataclass(frozen=True)
class Table:
    """Cells are text, shown as given; the first column names the row, the others are numbers."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    chosen: int | None = None  # the row that is marked
    mark: str = "chosen"  # or "worst"

    def __post_init__(self) -> None:
        for i, row in enumerate(self.rows):
            if len(row) != len(self.head):
                raise InputError(f"table {self.caption!r}: row {i} has {len(row)} cells for {len(self.head)} columns")


@dataclass(frozen=True)
class Panel:
    """Title as a question, what to know in one or two sentences, then figures, tables and small print."""

    title: str
    lead: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = field(default=())


def drawn(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """For the template: the panels with their figures as SVG. Each has its own salt, because they share one page."""
    from markupsafe import Markup

    return [
        {
            "key": f"panel{i}",
            "panel": panel,
            "figures": [
                {"svg": Markup(to_svg(f.axes, f.caption, f"panel{i}-{j}")), "caption": f.caption, "wide": f.wide}
                for j, f in enumerate(panel.figures)
            ],
        }
        for i, panel in enumerate(panels)
    ]
