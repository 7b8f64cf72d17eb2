"""Compare a paper's tables and claims with our cells: what is reported, what is measured, and the verdict.

Cells are combined over seeds only at the same scale and settings; a group with other settings is another line that
names them. The notes of a cell (schedule ours, 3 members instead of 5) accompany its numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from calibrant.bench.seeds import PAPER, Group, Mean, differences, groups, mean
from calibrant.bench.store import Cell
from calibrant.bench.verdict import Verdict, judge, pool
from calibrant.papers.reported import Claim, Column, Number, Pair, Row, Source, Table


@dataclass(frozen=True)
class Entry:
    """One number of a paper's table, and ours. `measured` is None if it was not run; `verdict` is None for the first
    row of a block and where the paper reports no difference from that row."""

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
    """One comparison of a claim, for one group of cells."""

    pair: Pair
    group: Group | None
    verdict: Verdict
    means: tuple[Mean | None, Mean | None]  # method, baseline
    caveats: tuple[str, ...]
    cells: tuple[Cell, ...]


def entries_of(table: Table, cells: Sequence[Cell]) -> list[Entry]:
    """Every number of a table, once per group of cells that measures it, or once as not run."""
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
    """The comparisons of a claim, each once per group of cells that has both sides, or once as not run."""
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
    """The GPU minutes that the cells took; a cell that several rows share counts once."""
    return sum({c.key: minutes_of(c) for c in cells}.values())


def minutes_of(cell: Cell) -> float:
    """The GPU minutes of a cell; if it shared the GPU (`parallel` of its extras), only its share."""
    return 0.0 if cell.device in ("", "cpu") else cell.seconds / 60 / cell.extras.get("parallel", 1)
