"""Cells → what people read: reported against measured over seeds, what is missing, two rows side by side."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from calibrant.bench.store import Cell, Store
from calibrant.metrics import METRICS
from calibrant.papers import Experiment, Scale
from calibrant.papers.experiment import OF_NO_METHOD, flat
from calibrant.types import jsonable


@dataclass(frozen=True)
class Line:
    """One number of one row: what the paper says, and what we measured, with its interval.

    One run: the interval of resampled test items, which says nothing about the method. Several seeds: their mean, and
    an interval that holds both the spread of the seeds (Student's t) and that of the items that they share; `of` says
    what it is of, and cells without intervals of their own give that of the seeds alone, from three on.
    """

    experiment: str
    variant: str
    metric: str
    reported: float | None  # None too below paper scale: nobody reported that
    mean: float
    deviation: float | None  # None with one seed
    low: float | None
    high: float | None
    of: str  # items (or what the cells resampled), seeds, seeds and items, or nothing
    seeds: int
    scale: str
    settings: str  # what tells these cells from others of the same experiment and scale; mostly nothing


NOT_A_METHOD = ("seed", "engine", "precision", "calibrators", "metrics")
"""Settings in which the seeds of one row may differ and still be put together: the last two only add numbers."""


def differing(cells: Sequence[Cell]) -> list[str]:
    """Settings in which cells differ. One that only some of them know came with a later version, and is none."""
    found = [dict(flat(c.settings)) for c in cells]
    known = set(found[0]).intersection(*found) if found else set()
    told = [k for k in known if k.split(".")[-1] not in NOT_A_METHOD and any(f[k] != found[0][k] for f in found)]
    return sorted(told)


def told_by(cell: Cell, keys: Sequence[str]) -> str:
    """`optimiser.weight_decay=0.0`, for the keys that `differing` found."""
    own = dict(flat(cell.settings)) if keys else {}
    return ", ".join(f"{k.removeprefix('recipe.')}={json.dumps(own[k])}" for k in keys if k in own)


def fullest_last(cells: Iterable[Cell]) -> list[Cell]:
    """So that a mapping by seed keeps, of several cells that nothing tells apart, the one with the most numbers."""
    return sorted(cells, key=lambda cell: sum(map(len, cell.measured.values())))


def lines(cells: Iterable[Cell], *, only_reported: bool = False) -> list[Line]:
    """Over the seeds of each (experiment, scale, settings, variant, metric): trainings of other settings, such as
    another weight decay, are other rows, never further seeds of one."""
    rows: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.counts:
            rows[cell.experiment, cell.scale].append(cell)
    out: list[Line] = []
    for these in rows.values():
        keys, groups = differing(these), dict[str, dict[int, Cell]]()
        for cell in these:
            groups.setdefault(told_by(cell, keys), {})
        for cell in fullest_last(these):
            groups[told_by(cell, keys)][cell.seed] = cell
        for settings, by_seed in groups.items():
            out += _lines([by_seed[seed] for seed in sorted(by_seed)], settings)
    return [line for line in out if line.reported is not None or not only_reported]


def _lines(cells: Sequence[Cell], settings: str) -> Iterator[Line]:
    """The lines of cells that are seeds of one training."""
    first = cells[0]
    for variant, metric in dict.fromkeys((v, m) for c in cells for v, row in c.measured.items() for m in row):
        each = [(c, value) for c in cells if (value := c.measured.get(variant, {}).get(metric)) is not None]
        if not each:
            continue
        ends = [(value, c.intervals.get(variant, {}).get(metric, (None, None))) for c, value in each]
        bounds = [(low - v, high - v) for v, (low, high) in ends if low is not None and high is not None]
        values = [value for _, value in each]
        reported = first.reported.get(variant, {}).get(metric) if first.scale == "paper" else None
        about = (*moments(values), *interval(values, bounds, within(metric), first.resampled), len(values))
        yield Line(first.experiment, variant, metric, reported, *about, first.scale, settings)


FEWEST_SEEDS = 3
"""Below it, seeds say nothing about a method."""


def within(metric: str) -> tuple[float, float]:
    """The values that a metric can have; any number for what is not in the table of metrics."""
    if metric not in METRICS:
        return -math.inf, math.inf
    known = METRICS[metric]
    return -1.0 if known.better == "zero" else 0.0, 1.0 if known.percent else math.inf


def interval(
    values: Sequence[float],
    items: Sequence[tuple[float, float]],
    ends: tuple[float, float] = (-math.inf, math.inf),
    unit: str = "items",
) -> tuple[float | None, float | None, str]:
    """95% of the mean over seeds, and what it is of: half-widths of seeds and of items added in squares.

    The seeds share their test items, so averaging over seeds does not shrink the items' part. Nothing beyond `ends`.
    """
    mean, deviation = moments(values)
    spread = 0.0 if deviation is None else student(len(values) - 1) * deviation / math.sqrt(len(values))
    if len(items) == len(values):
        below, above = (math.fsum(side) / len(items) for side in zip(*items, strict=True))
        of = unit if deviation is None else f"seeds and {unit}"
    elif len(values) >= FEWEST_SEEDS:
        below, above, of = 0.0, 0.0, "seeds"
    else:
        return None, None, "nothing"
    return max(mean - math.hypot(spread, below), ends[0]), min(mean + math.hypot(spread, above), ends[1]), of


def student(freedom: int) -> float:
    """The 97.5% point of Student's t."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def moments(values: Sequence[float]) -> tuple[float, float | None]:
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))


@dataclass(frozen=True)
class Standing:
    """Seeds of an experiment that are measured at one scale and one set of settings."""

    experiment: str
    scale: str
    settings: str  # what tells these cells from others of the row at this scale; mostly nothing
    done: int
    failed: int
    stale: int
    wanted: int
    exact: int  # of those done: at the row's own settings, as far as the paper prints them


def standing(
    experiments: Sequence[Experiment], store: Store, seeds: int | None = None, scale: Scale | None = None
) -> list[Standing]:
    """How much of each experiment is measured, at every scale that has cells, or at the one asked for."""
    cells: dict[str, list[Cell]] = defaultdict(list)
    for cell in store.cells(numbers=False):
        cells[cell.experiment].append(cell)
    out = []
    for e in experiments:
        wanted = seeds or (1 if scale == "smoke" else e.seeds)
        asked = "paper" if scale is None else e.scale_name(scale)
        groups: dict[tuple[str, str], list[Cell]] = defaultdict(list)
        for name in dict.fromkeys(c.scale for c in cells[e.name]):
            if scale is None or name == asked:
                these = [c for c in cells[e.name] if c.scale == name and c.seed < wanted]
                apart = differing(these)
                for cell in these:
                    groups[name, told_by(cell, apart)].append(cell)
        own = cache(partial(_flat_settings, e))
        for (name, settings), found in groups.items() or {(asked, ""): []}.items():
            done = {c.seed for c in found if c.counts}
            failed = {c.seed for c in found if c.status == "failed"} - done
            stale = {c.seed for c in found if c.status == "done" and c.stale} - done
            exact = {c.seed for c in found if c.counts and _is_own(e, c, own(_scale(c)))}
            out.append(Standing(e.name, name, settings, len(done), len(failed), len(stale), wanted, len(exact)))
    return out


def _flat_settings(e: Experiment, scale: Scale) -> dict[str, Any]:
    return dict(flat(jsonable(e.settings(0, scale))))


def _scale(cell: Cell) -> Scale:
    """At which its row would have to be run for a cell of as many epochs."""
    return "smoke" if cell.scale == "smoke" else cell.settings.get("recipe", {}).get("epochs", "paper")


def _is_own(e: Experiment, cell: Cell, own: Mapping[str, Any]) -> bool:
    """Whether a cell has the settings of its row; those that the paper does not print may be any. Of the calibrators
    and metrics it needs those that the paper reports; where it reports nothing, all of the row's."""
    found = dict(flat(cell.settings))
    free = {f"{part}.{key}" for part in ("recipe", "reference") for key in (*OF_NO_METHOD, *e.unprinted)}
    same = all(found.get(key) == value for key, value in own.items() if key not in (*free, "calibrators", "metrics"))
    words = {word for variant in e.reported for word in variant.split("+")}
    metrics = {metric for row in e.reported.values() for metric in row}
    maps = [c for name, c in zip(e.maps, own["calibrators"], strict=True) if name in words or not words]
    needed = [m for m in own["metrics"] if m in metrics or not metrics]
    there = found.get("calibrators", []), found.get("metrics", [])
    return same and all(c in there[0] for c in maps) and all(m in there[1] for m in needed)


@dataclass(frozen=True)
class Difference:
    """B − A over the seeds that both have: mean, and the standard error of that mean (None with one seed)."""

    scale: str
    variant: str
    metric: str
    mean: float
    error: float | None
    seeds: int
    settings: str


def differences(a: Sequence[Cell], b: Sequence[Cell]) -> list[Difference]:
    """Paired by scale, seed, and what tells trainings of one row apart: claims about methods need seeds, not items."""
    out = []
    for scale in dict.fromkeys(c.scale for c in a):
        sides = [[c for c in side if c.scale == scale and c.counts] for side in (a, b)]
        keys = sorted({k for side in sides for k in differing(side)})
        first, second = ({(told_by(c, keys), c.seed): c for c in fullest_last(side)} for side in sides)
        pairs: dict[tuple[str, str, str], list[float]] = defaultdict(list)
        for settings, seed in sorted(first.keys() & second.keys()):
            for variant, row in first[settings, seed].measured.items():
                other = second[settings, seed].measured.get(variant, {})
                for metric, value in row.items():
                    if value is not None and other.get(metric) is not None:
                        pairs[settings, variant, metric].append(float(other[metric] or 0.0) - value)
        for (settings, variant, metric), found in pairs.items():
            mean, deviation = moments(found)
            error = None if deviation is None else deviation / math.sqrt(len(found))
            out.append(Difference(scale, variant, metric, mean, error, len(found), settings))
    return out
