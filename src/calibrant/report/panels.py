"""A panel is an additional section of the HTML report, which only some reports have (σ curve, shifts, robustness).

Verbs pass panels to `html.render(..., panels=[…])`. A panel holds only text and figures; the page escapes the text and
draws the figures in its own colours, so a panel cannot inject anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from calibrant.errors import InputError
from calibrant.report.numbers import cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes


VERDICT = " verdict"
"""Suffix of the keys of a record that hold the verdict on another one."""


@dataclass(frozen=True)
class Figure:
    """A drawing (any axes of its figure) with its caption; `wide` figures take the whole width of the page."""

    axes: Axes
    caption: str
    wide: bool = False


@dataclass(frozen=True)
class Table:
    """A table of text; the first column names the row, the others hold numbers."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    chosen: int | None = None  # the row that is marked
    mark: str = "chosen"  # or "worst"

    @classmethod
    def of(
        cls,
        caption: str,
        records: Sequence[Mapping[str, Any]],
        chosen: int | None = None,
        mark: str = "chosen",
        units: Mapping[str, str] | None = None,
    ) -> Table:
        """Return a table of records, with columns in order of first appearance, in the unit of their name or `units`.

        The verdict on a value is shown in its cell: '0.2844 [0.25, 0.32] better'.
        """
        head = tuple(dict.fromkeys(key for record in records for key in record if not key.endswith(VERDICT)))
        unit = {name: name for name in head} | dict(units or {})
        rows = [tuple(_judged(record, name, unit[name]) for name in head) for record in records]
        return cls(caption, head, rows, chosen, mark)

    def __post_init__(self) -> None:
        for i, row in enumerate(self.rows):
            if len(row) != len(self.head):
                raise InputError(f"table {self.caption!r}: row {i} has {len(row)} cells for {len(self.head)} columns")


@dataclass(frozen=True)
class Panel:
    """A title (a question), the answer in one or two sentences, then figures, tables and small print."""

    title: str
    lead: str
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = field(default=())


def _judged(record: Mapping[str, Any], name: str, unit: str) -> str:
    verdict = record.get(f"{name}{VERDICT}")
    return cell(record.get(name), unit) + (f" {verdict}" if verdict else "")


def drawn(panels: Sequence[Panel]) -> list[dict[str, Any]]:
    """Return the panels for the template, with figures as SVG; each has its own salt, because they share a page."""
    from markupsafe import Markup

    from calibrant.report.plots.svg import to_svg

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
