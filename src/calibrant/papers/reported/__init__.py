"""What the papers report: every number of their tables, typed once, and their claims in words."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from calibrant.papers.reported import ar, ds, pep, rc, ss
from calibrant.papers.reported.claim import Claim, Pair
from calibrant.papers.reported.table import AS_TRAINED, Column, Number, Row, Source, Table

TABLES: dict[str, Table] = {t.name: t for paper in (pep, ss, ar, rc, ds) for t in paper.TABLES}
"""Name → table, in the order of the papers."""
CLAIMS: dict[str, Claim] = {c.name: c for paper in (pep, ss, ar, rc, ds) for c in paper.CLAIMS}
"""Name → claim."""


SAME_ROW = {
    f"ss/table_e1/{data}_resnet18_nearly_all": f"ss/table_e1/{data}_resnet18" for data in ("cifar10", "cifar100")
}
"""An experiment that measures another one's row once more → the other one."""

Numbers = Mapping[str, Mapping[str, float]]
"""Variant → metric → value, errors as accuracies."""


def reported_numbers(experiment: str) -> Numbers:
    """What the paper reports of an experiment, in any of its tables; empty if it reports nothing."""
    return _by_experiment().get(SAME_ROW.get(experiment, experiment), {})


@cache
def _by_experiment() -> dict[str, dict[str, dict[str, float]]]:
    out: dict[str, dict[str, dict[str, float]]] = {}
    for table in TABLES.values():
        for row in table.rows:
            for column in (c for c in table.columns if c.name in row.numbers):
                value, metric = row.numbers[column.name].value, column.metric
                if metric == "error":
                    value, metric = 1 - value, "accuracy"
                out.setdefault(row.experiment, {}).setdefault(row.source(column).variant, {})[metric] = value
    out.pop("", None)  # rows that no experiment measures
    return out


__all__ = [
    "AS_TRAINED",
    "CLAIMS",
    "TABLES",
    "Claim",
    "Column",
    "Number",
    "Numbers",
    "Pair",
    "Row",
    "Source",
    "Table",
    "reported_numbers",
]
