"""A paper's table as a record: every number with its row, its column and the paper's own ±.

A table is typed as text, so that it can be compared with the paper line by line. `# …` begins a block; the other rows
of a block are compared with its first row. A row is `label | cell | numbers`. The cell names the experiment
(`table1/row`) and, after `@`, the variant that measures the row; it is `-` if nothing does. A column is `metric` or
`variant:metric`, with a `%` if the paper prints it times 100. A number is `3.03±0.16`, with the paper's mark if it has
one. Only values are typed, never the differences that a paper prints beside them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

AS_TRAINED = "as_trained"
"""The variant without any calibrator."""

NUMBER = re.compile(r"(?P<value>\d+\.?\d*)(±(?P<spread>\d+\.?\d*))?(?P<mark>[▲▼]?)")


@dataclass(frozen=True)
class Number:
    """One number of a paper, as a fraction if the paper prints percent; `typed` is what the paper prints."""

    value: float
    spread: float | None  # the paper's ±, a standard deviation over its runs
    mark: str  # ▲ or ▼: the paper marks it as above or below the first row of its block
    typed: str


@dataclass(frozen=True)
class Column:
    """A metric of one variant: `temperature:ece`."""

    variant: str
    metric: str
    percent: bool

    @property
    def name(self) -> str:
        return f"{self.variant}:{self.metric}" if self.variant else self.metric

    @property
    def title(self) -> str:
        return self.metric if self.variant in ("", self.metric) else f"{self.variant}, {self.metric}"


@dataclass(frozen=True)
class Source:
    """What measures a number: an experiment by its full name (empty if there is none), and a variant of its cells.

    A variant like `extras/curve/nll/1` is the path of a number in the extras of a cell.
    """

    experiment: str
    variant: str = AS_TRAINED


@dataclass(frozen=True)
class Row:
    """A row of a table. `experiment` is the full name of what measures it, or empty; `variant` is added to the
    column's."""

    block: str
    label: str
    experiment: str
    variant: str
    numbers: Mapping[str, Number]

    def source(self, column: Column) -> Source:
        """What measures this row's number of the column."""
        return Source(self.experiment, "+".join(v for v in (column.variant, self.variant) if v) or AS_TRAINED)


@dataclass(frozen=True)
class Table:
    """A table of a paper; `oracle` says what the paper chose on test."""

    name: str
    where: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    oracle: str = ""

    def baseline(self, row: Row) -> Row | None:
        """The first row of the block; None for that row itself."""
        first = next(r for r in self.rows if r.block == row.block)
        return None if first == row else first

    def find(self, block: str, label: str) -> Row:
        return next(r for r in self.rows if (r.block, r.label) == (block, label))


def table(name: str, where: str, caption: str, columns: str, text: str, *, oracle: str = "") -> Table:
    """Read the text of a table, whose layout is described at the top of this file."""
    names = tuple(_column(c) for c in columns.split())
    return Table(name, where, caption, names, tuple(_rows(name.split("/")[0], names, text)), oracle)


def _column(text: str) -> Column:
    variant, _, metric = text.rpartition(":")
    return Column(variant, metric.rstrip("%"), metric.endswith("%"))


def _rows(paper: str, columns: tuple[Column, ...], text: str) -> Iterator[Row]:
    block = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("#"):
            block = line.lstrip("# ")
            continue
        label, cell, typed = (part.strip() for part in line.split("|"))
        experiment, _, variant = cell.partition("@")
        found = {c.name: _number(n, c.percent) for c, n in zip(columns, typed.split(), strict=True) if n != "-"}
        yield Row(block, label, "" if experiment == "-" else f"{paper}/{experiment}", variant, found)


def _number(text: str, percent: bool) -> Number:
    found = NUMBER.fullmatch(text)
    assert found is not None, f"{text!r} is no number of a table"
    value, spread = (None if found[k] is None else _fraction(found[k], percent) for k in ("value", "spread"))
    assert value is not None
    return Number(value, spread, found["mark"], text)


def _fraction(text: str, percent: bool) -> float:
    """The float nearest to the printed number, divided by 100 if it is a percentage."""
    return float(f"{text}e-2") if percent else float(text)
