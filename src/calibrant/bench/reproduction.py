"""A paper's tables and claims beside our cells: what is reported, what is measured, and the verdict on the difference.

Cells are put together over seeds only at the same scale and the same settings; whatever differs is another line, which
says in what. What a cell's notes say about it (schedule ours, 3 members instead of 5) goes with its numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.bench.store import Cell
from calibrant.bench.tables import differing, fullest_last, interval, moments, told_by, within
from calibrant.bench.verdict import Verdict, judge, pool
from calibrant.papers.reported import Claim, Column, Number, Pair, Row, Source, Table

PAPER = "paper"
"""The scale of a cell that has the epochs, the network and the data of its row."""
SMOKE = "smoke"
"""Shows that a row runs, on stand-ins; never beside a paper's number."""
EXTRAS = "extras/"
Runs = Mapping[str, Mapping[int, Cell]]
"""Experiment → seed → cell."""


@dataclass(frozen=True)
class Group:
    """Cells that may stand side by side: one scale, and one set of settings that some other cells do not have."""

    scale: str
    settings: str
    runs: Runs


@dataclass(frozen=True)
class Mean:
    """A number over seeds; `of` says what its interval is of."""

    value: float
    low: float | None
    high: float | None
    of: str
    seeds: int


@dataclass(frozen=True)
class Entry:
    """One number of a paper's table beside ours. Without `measured` it is not run; `verdict` is None for the first row
    of a block and where the paper reports no difference from it."""

    table: str
    block: str
    row: str
    column: Column
    reported: Number
    source: Source
    group: Group | None
    measured: Mean | None
    verdict: Verdict | None
    caveats: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """One comparison of a claim, at one scale and set of settings."""

    pair: Pair
    group: Group | None
    verdict: Verdict
    means: tuple[Mean | None, Mean | None]  # method, baseline
    caveats: tuple[str, ...]
    cells: tuple[Cell, ...]


def value(cell: Cell, source: Source, metric: str) -> float | None:
    """A number of a cell: `measured` of the variant, or of `extras/curve/nll/1` what the extras hold there."""
    if metric == "error":
        accuracy = value(cell, source, "accuracy")
        return None if accuracy is None else 1 - accuracy
    if metric == "temperature":
        found = cell.extras.get(source.variant)
        return found if isinstance(found, float) else None
    if source.variant.startswith(EXTRAS):
        return _at(cell.extras, source.variant.removeprefix(EXTRAS).split("/"))
    return cell.measured.get(source.variant, {}).get(metric)


def _at(extras: Any, path: Sequence[str]) -> float | None:
    """What lies at a path of keys and indices; of an estimate its value."""
    for step in path:
        extras = extras[int(step)] if isinstance(extras, list) and int(step) < len(extras) else _key(extras, step)
    found = _key(extras, "value") if isinstance(extras, Mapping) else extras
    return float(found) if isinstance(found, int | float) else None


def _key(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else None


def groups(cells: Iterable[Cell], experiments: Iterable[str]) -> list[Group]:
    """The experiments' finished cells, by scale and by the settings in which cells of one experiment differ."""
    wanted = set(experiments)
    by_scale: dict[str, dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if cell.counts and cell.experiment in wanted and cell.scale != SMOKE:
            by_scale[cell.scale][cell.experiment].append(cell)
    found: dict[tuple[str, str], dict[str, dict[int, Cell]]] = defaultdict(lambda: defaultdict(dict))
    for scale, rows in by_scale.items():
        keys = sorted({key for these in rows.values() for key in differing(these)})
        for name, these in rows.items():
            for cell in fullest_last(these):
                found[scale, told_by(cell, keys)][name][cell.seed] = cell
    order = sorted(found, key=lambda g: (g[0] != PAPER, g))
    return [Group(scale, settings, found[scale, settings]) for scale, settings in order]


def differences(group: Group, method: Source, baseline: Source, metric: str) -> list[float]:
    """Method minus baseline, of the seeds that both have."""
    ours, base = (group.runs.get(s.experiment, {}) for s in (method, baseline))
    out = []
    for seed in sorted(ours.keys() & base.keys()):
        a, b = value(ours[seed], method, metric), value(base[seed], baseline, metric)
        if a is not None and b is not None:
            out.append(a - b)
    return out


def mean(group: Group, source: Source, metric: str) -> Mean | None:
    """A number over the seeds of a group."""
    cells = [(c, value(c, source, metric)) for c in group.runs.get(source.experiment, {}).values()]
    known = [(c, v) for c, v in cells if v is not None]
    if not known:
        return None
    bounds = []
    for cell, v in known:
        low, high = cell.intervals.get(source.variant, {}).get(metric, (None, None))
        if low is not None and high is not None:
            bounds.append((low - v, high - v))
    values = [v for _, v in known]
    low, high, of = interval(values, bounds, within(metric), known[0][0].resampled)
    return Mean(moments(values)[0], low, high, of, len(values))


def beside(table: Table, cells: Sequence[Cell]) -> list[Entry]:
    """Every number of a table, once for each group of cells that measures it, or once as not run."""
    return [entry for block in dict.fromkeys(r.block for r in table.rows) for entry in _block(table, block, cells)]


def _block(table: Table, block: str, cells: Sequence[Cell]) -> Iterator[Entry]:
    rows = [r for r in table.rows if r.block == block]
    found = groups(cells, {r.experiment for r in rows})
    for column in table.columns:
        shared = {id(g): pool([_row_differences(g, rows[0], r, column) for r in rows[1:]]) for g in found}
        for row in (r for r in rows if column.name in r.numbers):
            source, number = row.source(column), row.numbers[column.name]
            first = rows[0].numbers.get(column.name)
            reported = None if row is rows[0] or first is None else number.value - first.value
            measured = [(g, mean(g, source, column.metric)) for g in found]
            here: list[tuple[Group | None, Mean | None]] = [(g, m) for g, m in measured if m is not None]
            for group, m in here or [(None, None)]:
                verdict = None
                if reported:
                    each = [] if group is None else _row_differences(group, rows[0], row, column)
                    verdict = judge(
                        each,
                        reported,
                        pooled=None if group is None else shared[id(group)],
                        other_scale=group is not None and group.scale != PAPER,
                    )
                caveats = () if group is None else _caveats(group.runs.get(row.experiment, {}).values())
                yield Entry(table.name, block, row.label, column, number, source, group, m, verdict, caveats)


def _row_differences(group: Group, first: Row, row: Row, column: Column) -> list[float]:
    return differences(group, row.source(column), first.source(column), column.metric)


def judged(claim: Claim, cells: Sequence[Cell]) -> list[Judged]:
    """The comparisons of a claim, each once for every group of cells that has both sides, or once as not run."""
    out = []
    for pair in claim.pairs:
        siblings = [p for p in claim.pairs if (p.baseline, p.metric) == (pair.baseline, pair.metric)]
        found = groups(cells, {s.experiment for p in siblings for s in (p.method, p.baseline)})
        here: list[Group | None] = [g for g in found if differences(g, pair.method, pair.baseline, pair.metric)]
        for group in here or [None]:
            if group is None:
                verdict = judge([], pair.reported, sign=pair.sign)
                out.append(Judged(pair, None, verdict, (None, None), (), ()))
                continue
            verdict = judge(
                differences(group, pair.method, pair.baseline, pair.metric),
                pair.reported,
                sign=pair.sign,
                pooled=pool([differences(group, p.method, p.baseline, p.metric) for p in siblings]),
                other_scale=group.scale != PAPER or bool(pair.unlike),
            )
            used = [c for s in (pair.method, pair.baseline) for c in group.runs.get(s.experiment, {}).values()]
            means = tuple(mean(group, s, pair.metric) for s in (pair.method, pair.baseline))
            caveats = (*((pair.unlike,) if pair.unlike else ()), *_caveats(used))
            out.append(Judged(pair, group, verdict, (means[0], means[1]), caveats, tuple(used)))
    return out


def _caveats(cells: Iterable[Cell]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for c in cells for part in c.note.split(";") if part.strip()))


def gpu_minutes(cells: Iterable[Cell]) -> float:
    """What the cells took on a GPU; a cell that several rows share counts once."""
    return sum({c.key: minutes_of(c) for c in cells}.values())


def minutes_of(cell: Cell) -> float:
    """Minutes of a GPU; of one that ran beside others (`parallel` of its extras), its share."""
    return 0.0 if cell.device in ("", "cpu") else cell.seconds / 60 / cell.extras.get("parallel", 1)
