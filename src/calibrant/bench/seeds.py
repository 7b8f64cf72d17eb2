"""Combine cells over seeds: group those that are comparable, and compute means, differences and intervals.

Only cells of the same scale and the same settings are seeds of one row; other settings make another group.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibrant.bench.networks import STAR, over_networks
from calibrant.bench.store import Cell
from calibrant.metrics import METRICS
from calibrant.papers.experiment import flat
from calibrant.papers.reported import Source

PAPER = "paper"
"""The scale of a cell that has the epochs, the network and the data of its row."""
SMOKE = "smoke"
"""The scale that only shows that a row runs; its numbers never stand beside a paper's."""
EXTRAS = "extras/"
Runs = Mapping[str, Mapping[int, Cell]]
"""Experiment → seed → cell."""


NOT_A_METHOD = ("seed", "engine", "precision", "calibrators", "metrics")
"""Settings in which the seeds of one row may differ; calibrators and metrics only add numbers."""


def differing_settings(cells: Sequence[Cell]) -> list[str]:
    """The settings in which cells differ. A setting that some of the cells lack came with a later version, and does
    not count."""
    found = [dict(flat(c.settings)) for c in cells]
    common = set(found[0]).intersection(*found) if found else set()
    return sorted(k for k in common if k.split(".")[-1] not in NOT_A_METHOD and any(f[k] != found[0][k] for f in found))


def settings_in_words(cell: Cell, keys: Sequence[str]) -> str:
    """The cell's values of some settings, as in `optimiser.weight_decay=0.0`."""
    own = dict(flat(cell.settings)) if keys else {}
    return ", ".join(f"{k.removeprefix('recipe.')}={json.dumps(own[k])}" for k in keys if k in own)


def fullest_last(cells: Iterable[Cell]) -> list[Cell]:
    """The cells, those with the most numbers last, so that a mapping by seed keeps these."""
    return sorted(cells, key=lambda cell: sum(map(len, cell.measured.values())))


@dataclass(frozen=True)
class Group:
    """Comparable cells: of one scale, and of one set of those settings in which cells differ."""

    scale: str
    settings: str
    runs: Runs


@dataclass(frozen=True)
class Mean:
    """A mean over seeds; `of` says what its interval resamples."""

    value: float
    low: float | None
    high: float | None
    of: str
    seeds: int


def value(cell: Cell, source: Source, metric: str) -> float | None:
    """A number of a cell: a metric of the variant, or, for a variant like `extras/curve/nll/1`, an entry of extras."""
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
    """The number at a path of keys and indices; of an estimate, its value."""
    for step in path:
        extras = extras[int(step)] if isinstance(extras, list) and int(step) < len(extras) else _key(extras, step)
    found = _key(extras, "value") if isinstance(extras, Mapping) else extras
    return float(found) if isinstance(found, int | float) else None


def _key(of: Any, name: str) -> Any:
    return of.get(name) if isinstance(of, Mapping) else None


def groups(cells: Iterable[Cell], experiments: Iterable[str], *, smoke: bool = False) -> list[Group]:
    """The finished cells of experiments, by scale and by the settings in which cells of one experiment differ."""
    wanted = set(experiments)
    counted = [cell for cell in cells if cell.counts]
    of_others = [cell for name in wanted if STAR in name for cell in over_networks(counted, name)]
    by_scale: dict[str, dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in (*counted, *of_others):
        if cell.experiment in wanted and (smoke or cell.scale != SMOKE):
            by_scale[cell.scale][cell.experiment].append(cell)
    found: dict[tuple[str, str], dict[str, dict[int, Cell]]] = defaultdict(lambda: defaultdict(dict))
    for scale, rows in by_scale.items():
        keys = sorted({key for these in rows.values() for key in differing_settings(these)})
        for name, these in rows.items():
            for cell in fullest_last(these):
                found[scale, settings_in_words(cell, keys)][name][cell.seed] = cell
    order = sorted(found, key=lambda g: (g[0] != PAPER, g))
    return [Group(scale, settings, found[scale, settings]) for scale, settings in order]


def differences(group: Group, method: Source, baseline: Source, metric: str) -> list[float]:
    """Method minus baseline, for each seed that both have."""
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


FEWEST_SEEDS = 3
"""With fewer seeds there is no verdict about a method."""


def within(metric: str) -> tuple[float, float]:
    """The range of a metric's values; unbounded if it is not in the table of metrics."""
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
    """The 95% interval of the mean over seeds, clipped to `ends`, and what it is of.

    The half-widths over seeds and over items are added in squares. The seeds share their test items, so averaging over
    seeds does not shrink the items' part.
    """
    mean, deviation = moments(values)
    spread = 0.0 if deviation is None else half_width(deviation**2, len(values) - 1, len(values))
    if len(items) == len(values):
        below, above = (math.fsum(side) / len(items) for side in zip(*items, strict=True))
        of = unit if deviation is None else f"seeds and {unit}"
    elif len(values) >= FEWEST_SEEDS:
        below, above, of = 0.0, 0.0, "seeds"
    else:
        return None, None, "nothing"
    return max(mean - math.hypot(spread, below), ends[0]), min(mean + math.hypot(spread, above), ends[1]), of


def half_width(variance: float, freedom: float, count: int) -> float:
    """The half-width of a mean's 95% interval by Student's t."""
    from scipy.stats import t

    return float(t.ppf(0.975, freedom)) * math.sqrt(variance / count)


def moments(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the standard deviation (None for a single value)."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, None
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1))
