"""A claim of a paper in its own words, and the comparisons by which our cells can judge it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibrant.papers.reported.table import Source, Table


@dataclass(frozen=True)
class Pair:
    """Method minus baseline in one metric. `reported` is None if the paper says only which is better (`sign`).

    `unlike` says how our comparison differs from the paper's; then there is no verdict.
    """

    label: str
    method: Source
    baseline: Source
    metric: str
    sign: int
    reported: float | None = None
    unlike: str = ""


@dataclass(frozen=True)
class Claim:
    """`says` is the claim in one sentence, `words` are the paper's own."""

    name: str
    where: str
    says: str
    words: str
    pairs: tuple[Pair, ...]


def pairs(
    table: Table, columns: Sequence[str], methods: Sequence[str] | None = None, *, against: str = ""
) -> tuple[Pair, ...]:
    """The rows of a table that we can measure (or those in `methods`), each against the first row of its block or the
    row `against`."""
    out = []
    chosen = [c for name in columns for c in table.columns if c.name == name]
    several = len({c.variant for c in chosen}) > 1
    for column in chosen:
        for row in (r for r in table.rows if r.experiment and (methods is None or r.label in methods)):
            base = table.find(row.block, against) if against else table.baseline(row)
            if base is None:
                continue
            difference = row.numbers[column.name].value - base.numbers[column.name].value
            if difference:
                after = f", {column.variant}" if several and column.variant else ""
                label = f"{row.block}: {row.label} − {base.label}{after}"
                sign = 1 if difference > 0 else -1
                out.append(Pair(label, row.source(column), base.source(column), column.metric, sign, difference))
    return tuple(out)
