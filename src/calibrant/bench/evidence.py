"""What every method does to every measured network: its difference from the plain network, paired by seed.

A row is a method on one network. Each column has the baseline's mean, the mean difference over seeds, its 95% interval
and its p-value (`verdict.interval`: below 5 seeds the variance is pooled over the methods that share the baseline),
after Holm's correction over those methods. Networks that others trained share a row per data set; there each network
counts as a seed does elsewhere (`bench.networks`). `calibrant advise` reads the rows that ship with the package, and
the scorecard's page shows them; `python -m docs.make_scorecard` makes both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.bench.seeds import FEWEST_SEEDS, PAPER, Group, differences, groups, mean, moments
from calibrant.bench.store import Cell
from calibrant.bench.verdict import interval, p_value, pool
from calibrant.metrics.compare import holm
from calibrant.papers import AS_TRAINED
from calibrant.papers.comparisons import Block, Entry, blocks
from calibrant.papers.reported import Source
from calibrant.types import jsonable

LEVEL = 0.05
COLUMNS: dict[str, tuple[str, str]] = {
    "accuracy": ("", "accuracy"),
    "nll": ("", "nll"),
    "brier": ("", "brier"),
    "ece": ("", "ece"),
    "auroc": ("", "auroc"),
    "aurc": ("", "aurc"),
    "nll_scaled": ("temperature", "nll"),
    "nll_rival": ("rival", "nll"),
    "ece_scaled": ("temperature", "ece"),
    "nll_shifted": ("corruptions", "nll"),
    "ece_shifted": ("corruptions", "ece"),
    "ood_auroc": ("foreign", "auroc_entropy"),
}
"""Column → (what is done to the predictor or its data, metric). `_scaled`: the method and the baseline, each after its
own temperature scaling; `nll_rival`: the method as trained against the baseline after temperature scaling."""
HIGH = ("accuracy", "auroc", "ood_auroc")
"""The columns in which higher is better."""


@dataclass(frozen=True)
class Value:
    """One column of a row. Holm's correction over the methods of the block is in `p`; one seed has no `p`, `low` and
    `high`."""

    baseline: float
    mean: float
    low: float | None
    high: float | None
    p: float | None
    word: str


@dataclass(frozen=True)
class Evidence:
    """A method on one network, compared with the plain network."""

    method: str
    where: str
    scale: str  # `paper`: the full schedule
    settings: str
    seeds: int
    caveat: str
    cells: tuple[str, str]  # experiments of the method and of the baseline
    values: dict[str, Value]

    def plain(self) -> dict[str, Any]:
        """As JSON, with six digits."""
        about: dict[str, Any] = jsonable(vars(self))
        return about | {"values": {c: _rounded(vars(v)) for c, v in self.values.items()}}


def _rounded(value: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in value.items()}


def word(column: str, each: Sequence[float], p: float | None) -> str:
    """`better` or `worse` if the difference is significant, else `open`; `few seeds` if there are too few to tell."""
    if p is None or len(each) < FEWEST_SEEDS:
        return "few seeds"
    if p >= LEVEL:
        return "open"
    return "better" if (moments(each)[0] > 0) == (column in HIGH) else "worse"


def evidence(cells: Sequence[Cell]) -> list[Evidence]:
    """Every method on every measured network; each network at one schedule (`_most_telling`)."""
    return [row for block in blocks() for row in _most_telling(block, cells)]


def _most_telling(block: Block, cells: Sequence[Cell]) -> list[Evidence]:
    """The rows of the schedule that says most: the full one if some of its rows have enough seeds, else the one with
    the most seeds in all, and among equals the one whose plain network has the lowest NLL."""
    found = groups(cells, {s.experiment for e in block.entries for s in (e.method, e.baseline)})
    each = [list(_rows(block, group)) for group in found]

    def telling(rows: list[Evidence]) -> tuple[bool, int, float]:
        full = any(r.scale == PAPER and r.seeds >= FEWEST_SEEDS for r in rows)
        return full, sum(r.seeds for r in rows), -rows[0].values["nll"].baseline

    return max((rows for rows in each if rows), key=telling, default=[])


def _rows(block: Block, group: Group) -> Iterator[Evidence]:
    made: dict[Entry, dict[str, Value]] = defaultdict(dict)
    for column, (_, metric) in COLUMNS.items():
        pairs = {e: (_at(e.method, column, block), _at(e.baseline, column, block, base=True)) for e in block.entries}
        each = {e: found for e, (a, b) in pairs.items() if (found := differences(group, a, b, metric))}
        shared = pool(list(each.values()))
        p = {e: p_value(found, shared) for e, found in each.items()}
        corrected = holm({e.name: v for e, v in p.items() if v is not None})
        for e, found in each.items():
            base, (low, high) = mean(group, pairs[e][1], metric), interval(found, shared)
            assert base is not None, "a difference has a baseline"
            adjusted = corrected.get(e.name)
            made[e][column] = Value(base.value, moments(found)[0], low, high, adjusted, word(column, found, adjusted))
    for e, values in made.items():
        if "nll" in values:
            seeds, names = len(differences(group, e.method, e.baseline, "nll")), (e.method, e.baseline)
            about = (e.name, block.where, group.scale, group.settings, seeds, block.caveat)
            yield Evidence(*about, (names[0].experiment, names[1].experiment), values)


def _at(source: Source, column: str, block: Block, *, base: bool = False) -> Source:
    """The variant of the cells that has this column of a method or of its baseline."""
    how, own = COLUMNS[column][0], source.variant if source.variant != AS_TRAINED else ""
    parts = {
        "": (own,),
        "temperature": (own, "temperature"),
        "rival": (own, "temperature" if base else ""),
        "corruptions": ("corruptions", own),
        "foreign": (block.foreign, own),
    }[how]
    return Source(source.experiment, "+".join(p for p in parts if p) or AS_TRAINED)
