"""What the papers report: every number of their tables, typed once, and the claims that they make in words."""

from __future__ import annotations

from calibrant.papers.reported import ar, ds, pep, rc, ss
from calibrant.papers.reported.claim import Claim, Pair
from calibrant.papers.reported.table import AS_TRAINED, Column, Number, Row, Source, Table

TABLES: dict[str, Table] = {t.name: t for paper in (pep, ss, ar, rc, ds) for t in paper.TABLES}
"""Name → table, in the order of the papers."""
CLAIMS: dict[str, Claim] = {c.name: c for paper in (pep, ss, ar, rc, ds) for c in paper.CLAIMS}
"""Name → claim."""


def said_of(experiment: str) -> dict[str, dict[str, float]]:
    """The paper's numbers of one experiment, from every table: variant → metric → value (errors as accuracies)."""
    out: dict[str, dict[str, float]] = {}
    for table in TABLES.values():
        for row in (r for r in table.rows if r.experiment == experiment):
            for column in (c for c in table.columns if c.name in row.numbers):
                value, metric = row.numbers[column.name].value, column.metric
                if metric == "error":
                    value, metric = 1 - value, "accuracy"
                out.setdefault(row.source(column).variant, {})[metric] = value
    return out


__all__ = [
    "AS_TRAINED",
    "CLAIMS",
    "TABLES",
    "Claim",
    "Column",
    "Number",
    "Pair",
    "Row",
    "Source",
    "Table",
    "said_of",
]
