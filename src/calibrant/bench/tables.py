"""Cells → what people read: reported against measured over seeds, what is missing, two rows side by side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from calibrant.bench.store import Cell, Store
from calibrant.papers import Experiment, Scale


@dataclass(frozen=True)
class Line:
    """One number of one row: what the paper says, what we measured (mean and standard deviation over seeds)."""

    experiment: str
    variant: str
    metric: str
    reported: float | None
    mean: float
    deviation: float | None  # None with one seed
    seeds: int
    scale: str


def lines(cells: Iterable[Cell], *, only_reported: bool = False) -> list[Line]:
    """Mean over the seeds of each (experiment, scale, variant, metric)."""
    values: dict[tuple[str, str, str, str], list[float]] = defaultdict(list)
    said: dict[tuple[str, str, str, str], float | None] = {}
    for cell in cells:
        if cell.status != "done":
            continue
        for variant, row in cell.measured.items():
            for metric, value in row.items():
                name = (cell.experiment, cell.scale, variant, metric)
                said[name] = cell.reported.get(variant, {}).get(metric)
                if value is not None:
                    values[name].append(value)
    return [
        Line(name[0], name[2], name[3], said[name], *moments(found), len(found), name[1])
        for name, found in values.items()
        if said[name] is not None or not only_reported
    ]


def moments(values: Sequence[float]) -> tuple[float, float | None]:
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


@dataclass(frozen=True)
class Standing:
    """Seeds of an experiment that are measured; `exact`: at just the settings that this version would run."""

    experiment: str
    done: int
    exact: int
    failed: int
    wanted: int


def standing(experiments: Sequence[Experiment], store: Store, scale: Scale, seeds: int | None) -> list[Standing]:
    """How much of each experiment is measured. Runs with settings on top (bf16, say) are done, but not exact."""
    out = []
    for e in experiments:
        wanted = range(seeds or e.seeds)
        cells = [c for c in store.cells(e.name) if c.scale == scale and c.seed in wanted]
        done = {c.seed for c in cells if c.status == "done"}
        exact = {c.seed for c in cells if c.status == "done" and c.key == e.key(c.seed, scale)}
        failed = {c.seed for c in cells if c.status == "failed"} - done
        out.append(Standing(e.name, len(done), len(exact), len(failed), len(wanted)))
    return out


@dataclass(frozen=True)
class Difference:
    """B − A over the seeds that both have: mean, and the standard error of that mean (None with one seed)."""

    variant: str
    metric: str
    mean: float
    error: float | None
    seeds: int


def differences(a: Sequence[Cell], b: Sequence[Cell]) -> list[Difference]:
    """Paired by seed: a claim about methods needs seeds, not items."""
    first = {c.seed: c for c in a if c.status == "done"}
    second = {c.seed: c for c in b if c.status == "done"}
    pairs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for seed in sorted(first.keys() & second.keys()):
        for variant, row in first[seed].measured.items():
            other = second[seed].measured.get(variant, {})
            for metric, value in row.items():
                if value is not None and other.get(metric) is not None:
                    pairs[variant, metric].append(float(other[metric] or 0.0) - value)
    out = []
    for (variant, metric), found in pairs.items():
        mean, deviation = moments(found)
        out.append(
            Difference(
                variant, metric, mean, None if deviation is None else deviation / math.sqrt(len(found)), len(found)
            )
        )
    return out
