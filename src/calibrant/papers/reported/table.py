"""What a paper's table says, as a record: every number with its row, its column and the paper's own ±.

A table is typed as text, so that it can be laid beside the paper. `# …` begins a block; the first row of a block is
what its other rows are compared with. A row is `label | cell | numbers`: the cell is the experiment (`table1/row`) and,
after `@`, the variant that measures it, or `-` where there is none. A column is `metric` or `variant:metric`; a `%`
after it says that the paper prints it times 100. A number is `3.03±0.16`, followed by the paper's mark if it has one.
Only values are typed, never the differences that a paper prints beside them.
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
    """One number of a paper, as a fraction where the paper prints percent; `typed` is how the paper prints it."""

    value: float
    spread: float | None  # the paper's ±, a standard deviation over its runs
    mark: str  # ▲ or ▼: above or below the first row of its block, in the paper's words
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

    A variant `extras/curve/nll/1` is the place of a number among the extras of a cell.
    """

    experiment: str
    variant: str = AS_TRAINED


@dataclass(frozen=True)
class Row:
    """`experiment` is the full name of what measures this row, or empty; `variant` joins that of the column."""

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
    """Reads the text of a table; the layout is described at the head of this file."""
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
    """The float nearest to the printed decimal, shifted by two digits where it is a percentage."""
    return float(f"{text}e-2") if percent else float(text)
