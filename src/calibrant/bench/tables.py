"""Summarise cells: numbers over seeds, what is measured of each row, and the difference of two rows."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from calibrant.bench.seeds import (
    PAPER,
    SMOKE,
    Group,
    differences,
    differing_settings,
    groups,
    mean,
    moments,
    settings_in_words,
)
from calibrant.bench.store import Cell, Store
from calibrant.papers import Experiment, Scale
from calibrant.papers.experiment import OF_NO_METHOD, flat
from calibrant.papers.reported import Source
from calibrant.types import jsonable


@dataclass(frozen=True)
class Line:
    """One number of one row: what the paper reports, and what we measured, with its interval.

    The interval of a single run resamples the test items, and says nothing about the method. With several seeds it
    includes the spread of the seeds (Student's t) and of the items, which they share. If the cells have no intervals,
    it is that of the seeds alone, from three seeds on. `of` says which.
    """

    experiment: str
    variant: str
    metric: str
    reported: float | None  # None also for every other scale than the paper's
    mean: float
    deviation: float | None  # None with one seed
    low: float | None
    high: float | None
    of: str  # items (or frames), seeds, seeds and items, or nothing
    seeds: int
    scale: str
    settings: str  # in which these cells differ from others of the same experiment and scale; usually empty


def lines(cells: Iterable[Cell]) -> list[Line]:
    """The mean over seeds of each (experiment, scale, settings, variant, metric). Trainings with other settings, such
    as another weight decay, are other lines, never further seeds."""
    rows: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        rows[cell.experiment].append(cell)
    apart = [(name, group) for name, these in rows.items() for group in groups(these, [name], smoke=True)]
    return [line for name, group in apart for line in _lines(group, name)]


def _lines(group: Group, name: str) -> Iterator[Line]:
    cells = list(group.runs[name].values())
    for variant, metric in measured(cells):
        values = [v for c in cells if (v := c.measured.get(variant, {}).get(metric)) is not None]
        if (m := mean(group, Source(name, variant), metric)) is not None:
            reported = cells[0].reported.get(variant, {}).get(metric) if group.scale == PAPER else None
            about = (reported, m.value, moments(values)[1], m.low, m.high, m.of, m.seeds)
            yield Line(name, variant, metric, *about, group.scale, group.settings)


def measured(cells: Iterable[Cell]) -> list[tuple[str, str]]:
    """The measured (variant, metric) pairs, in the order of the cells."""
    return list(dict.fromkeys((v, m) for c in cells for v, row in c.measured.items() for m in row))


@dataclass(frozen=True)
class RowStatus:
    """How many seeds of an experiment are measured at one scale and one set of settings."""

    experiment: str
    scale: str
    settings: str  # in which these cells differ from others of the row at this scale; usually empty
    done: int
    failed: int
    stale: int
    wanted: int
    exact: int  # how many of `done` have the row's own settings, as far as the paper prints them


def row_statuses(
    experiments: Sequence[Experiment], store: Store, seeds: int | None = None, scale: Scale | None = None
) -> list[RowStatus]:
    """How many seeds of each experiment are measured, at every scale that has cells or at the given one."""
    cells: dict[str, list[Cell]] = defaultdict(list)
    for cell in store.cells():
        cells[cell.experiment].append(cell)
    out = []
    for e in experiments:
        asked = "paper" if scale is None else e.scale_name(scale)
        alike: dict[tuple[str, str], list[Cell]] = defaultdict(list)
        for name in dict.fromkeys(c.scale for c in cells[e.name]):
            if scale is None or name == asked:
                these = [c for c in cells[e.name] if c.scale == name and c.seed < _wanted(e, name, seeds)]
                apart = differing_settings(these)
                for cell in these:
                    alike[name, settings_in_words(cell, apart)].append(cell)
        own = cache(partial(_flat_settings, e))
        for (name, settings), found in alike.items() or {(asked, ""): []}.items():
            done = {c.seed for c in found if c.counts}
            failed = {c.seed for c in found if c.status == "failed"} - done
            stale = {c.seed for c in found if c.status == "done" and c.stale} - done
            exact = {c.seed for c in found if c.counts and _is_own(e, c, own(_scale(c)))}
            counts = (len(done), len(failed), len(stale), _wanted(e, name, seeds), len(exact))
            out.append(RowStatus(e.name, name, settings, *counts))
    return out


def _wanted(e: Experiment, scale: str, seeds: int | None) -> int:
    """How many seeds a row wants: as many as asked, else as in the paper, or one at smoke scale."""
    return seeds or (1 if scale == SMOKE else e.seeds)


def _flat_settings(e: Experiment, scale: Scale) -> dict[str, Any]:
    return dict(flat(jsonable(e.settings(0, scale))))


def _scale(cell: Cell) -> Scale:
    """The scale at which its row would have as many epochs as the cell."""
    return "smoke" if cell.scale == "smoke" else cell.settings.get("recipe", {}).get("epochs", "paper")


def _is_own(e: Experiment, cell: Cell, own: Mapping[str, Any]) -> bool:
    """Whether a cell has the settings of its row. Settings that the paper does not print may have any value. The cell
    needs the calibrators and metrics that the paper reports, or all of the row's if the paper reports nothing."""
    found = dict(flat(cell.settings))
    free = {f"{part}.{key}" for part in ("recipe", "reference") for key in (*OF_NO_METHOD, *e.unprinted)}
    same = all(found.get(key) == value for key, value in own.items() if key not in (*free, "calibrators", "metrics"))
    words = {word for variant in e.reported for word in variant.split("+")}
    metrics = {metric for row in e.reported.values() for metric in row}
    maps = [c for name, c in zip(e.maps, own["calibrators"], strict=True) if name in words or not words]
    needed = [m for m in own["metrics"] if m in metrics or not metrics]
    calibrators, own_metrics = found.get("calibrators", []), found.get("metrics", [])
    return same and all(c in calibrators for c in maps) and all(m in own_metrics for m in needed)


@dataclass(frozen=True)
class Difference:
    """B − A over the seeds that both have: the mean and its standard error (None with one seed)."""

    scale: str
    variant: str
    metric: str
    mean: float
    error: float | None
    seeds: int
    settings: str


def compared(a: str, b: str, cells: Iterable[Cell]) -> list[Difference]:
    """The differences of two experiments, paired by seed, for each scale and each set of settings."""
    out = []
    for group in groups(cells, {a, b}, smoke=True):
        for variant, metric in measured(group.runs.get(a, {}).values()):
            if each := differences(group, Source(b, variant), Source(a, variant), metric):
                middle, deviation = moments(each)
                error = None if deviation is None else deviation / math.sqrt(len(each))
                out.append(Difference(group.scale, variant, metric, middle, error, len(each), group.settings))
    return out
