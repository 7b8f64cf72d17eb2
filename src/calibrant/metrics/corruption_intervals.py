"""Intervals of means over corruptions, and of their ratios to a reference, where all cells share the same items.

Error and NLL are means over items, so their bootstrap replicates are exact. AUROC uses the influence of each item.

For ECE, averaging over cells reduces the noise but not the bias that noise gives to |gap|, so an interval around the
observed mean does not cover. Its interval inverts a test, as `calibration_intervals` does for one cell: the mean ECE is
simulated along a line t · shape of population gaps, for all bins of all cells at once and with the noise that the items
bring into all cells together. The lower end uses gaps without the part that noise explains, the upper end gaps that are
no smaller than their noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.functional.binning import group_sums
from calibrant.metrics import calibration_intervals
from calibrant.metrics.bca import UNMOVED, acceleration, interval, normal_quantile, sum_by_unit
from calibrant.metrics.bootstrap import counts
from calibrant.metrics.calibration_cells import Cells, possible
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.panel import Panel
from calibrant.types import Estimate

NO_ERROR = "the reference makes no error on some type: nothing to divide by"
NO_ECE = "the reference has no calibration error on some type: nothing to divide by"


@dataclass(frozen=True, eq=False)  # several aggregates share the noise of a cell, and find it by the cell itself
class BinnedItems:
    """The occupied bins of one cell, and what each item adds to the gap of its bin."""

    held: Cells
    which: Tensor  # [N] occupied bin of each item
    signed: Tensor  # [N] confidence − correct

    @classmethod
    def of(cls, panel: Panel) -> BinnedItems:
        return cls(panel.cells("width"), torch.unique(panel.width_index, return_inverse=True)[1], panel.signed)

    @property
    def ece(self) -> float:
        return float((self.held.mass * self.held.gap).abs().sum())

    def noise(self, w: Tensor, unit: Tensor) -> Tensor:
        """How the gaps change when the units are drawn with weights [B, U], [B, bins]."""
        sums = group_sums(unit, w.shape[1], self.which, len(self.held.count), self.signed)
        return w @ sums - sums.sum(0) / len(unit)


Cell = dict[str, Any]
"""The measures of one cell: a value per item [N] whose mean is the measure, and `BinnedItems` for "ece"."""

Pair = tuple[tuple[Cell, ...], tuple[Cell, ...]]
"""The model's cells, and the reference's."""


@dataclass(frozen=True)
class Aggregate:
    """The mean over `ratios` of (mean of the model's cells) / (mean of the reference's cells, or 1 without them)."""

    measure: str
    ratios: tuple[Pair, ...]

    @property
    def plain(self) -> bool:
        return not any(below for _, below in self.ratios)

    @cached_property
    def items(self) -> list[tuple[Tensor, Tensor | None]]:
        """(above, below) of each ratio as values per item, averaged over cells; not for ECE."""
        mean = [[torch.stack([c[self.measure] for c in cells]).mean(0) for cells in r if cells] for r in self.ratios]
        return [(m[0], m[1] if len(m) > 1 else None) for m in mean]

    @cached_property
    def sizes(self) -> list[tuple[float, float]]:
        """The values (above, below) of each ratio."""
        return [(self._mean(above), self._mean(below) if below else 1.0) for above, below in self.ratios]

    def _mean(self, cells: Sequence[Cell]) -> float:
        own = [c[self.measure] for c in cells]
        if self.measure == "ece":
            return float(sum(g.ece for g in own) / len(own))
        return float(torch.stack(own).mean(0).mean())

    @cached_property
    def value(self) -> float:
        return 1 / len(self.ratios) * sum(_divided(*size) for size in self.sizes)

    def influence(self) -> Tensor:
        """The influence of each item on the aggregate, [N]."""
        slopes = []
        for (above, below), (a, b) in zip(self.items, self.sizes, strict=True):
            u = (above - a) / len(above)
            slopes.append(u if below is None else (u - a / b * ((below - b) / len(below))) / b)
        return torch.stack([1 / len(slopes) * u for u in slopes]).sum(0)

    def replicates(self, w: Tensor, unit: Tensor) -> Tensor:
        """Values [B] under weights [B, U] of the units, for measures that are means over items."""

        def mean(items: Tensor) -> Tensor:
            return w @ torch.bincount(unit, items, minlength=w.shape[1])

        each = [mean(above) if below is None else mean(above) / mean(below) for above, below in self.items]
        return torch.stack([1 / len(each) * e for e in each]).sum(0)

    def gaps(self) -> list[tuple[float, BinnedItems]]:
        """The aggregate of ECEs as Σ factor · ECE over the model's cells, with the reference's ECEs as given."""
        share = 1 / len(self.ratios)
        return [
            (share * (1 / (len(above) * below)), cell["ece"])
            for (above, _), (_, below) in zip(self.ratios, self.sizes, strict=True)
            for cell in above
        ]


def _divided(above: float, below: float) -> float:
    if below:
        return above / below
    return math.nan if above == 0 else math.inf


def item_means(items: Mapping[str, Tensor], resampling: Resampling | None) -> dict[str, Estimate]:
    """The mean of each measure, given its value for each item, with bootstrap intervals from the same resamples."""
    n = len(next(iter(items.values())))
    return estimates({name: Aggregate(name, ((({name: x},), ()),)) for name, x in items.items()}, n, None, resampling)


def estimates(
    wanted: Mapping[Any, Aggregate], n: int, group: Tensor | None, resampling: Resampling | None
) -> dict[Any, Estimate]:
    """The value of every aggregate, with intervals from the same resamples."""
    finite = {name: math.isfinite(a.value) for name, a in wanted.items()}
    if resampling is None or n < 2:
        return {
            name: Estimate(a.value) if finite[name] else Estimate(None, reason=NO_ERROR) for name, a in wanted.items()
        }
    out = {name: Estimate(None, reason=NO_ECE) for name, a in wanted.items() if a.measure == "ece" and not finite[name]}
    binned = {name: a.gaps() for name, a in wanted.items() if a.measure == "ece" and finite[name]}
    parts: dict[Any, list[Tensor]] = {name: [] for name, a in wanted.items() if a.measure not in ("ece", "auroc")}
    moved: dict[BinnedItems, list[Tensor]] = {cell: [] for row in binned.values() for _, cell in row}
    unit = torch.arange(n) if group is None else group
    size = torch.bincount(unit).double()
    for drawn in counts(len(size), len(size), resampling.replicates, resampling.seed):
        w = drawn / (drawn @ size)[:, None]  # the weight of one item in each unit, so that all items sum to 1
        for name, rows in parts.items():
            rows.append(wanted[name].replicates(w, unit))
        for cell, rows in moved.items():
            rows.append(cell.noise(w, unit))
    noise = {cell: torch.cat(rows) for cell, rows in moved.items()}
    for name, a in wanted.items():
        if name in binned:
            low, high = mean_ece(binned[name], noise, resampling.level)
            given = "" if a.plain else "; the reference's ECEs as given"
            out[name] = Estimate(a.value, low, high, method=f"test inversion, jointly over cells{given}")
        elif name in parts:
            out[name] = _bootstrapped(a, torch.cat(parts[name]), group, resampling.level)
        elif name not in out:
            out[name] = _by_influence(a, group, resampling.level)
    return out


def _bootstrapped(a: Aggregate, replicates: Tensor, group: Tensor | None, level: float) -> Estimate:
    if not math.isfinite(a.value) or not bool(torch.isfinite(replicates).any()):  # the reference makes no error
        return Estimate(None, reason=NO_ERROR)
    method = "BCa bootstrap over items, jointly over cells"
    e = interval(Estimate(a.value), a.value, replicates, acceleration(a.influence(), group), level, method)
    if e.low is None or e.high is None or not a.plain:
        return e
    ((items, _),) = a.items  # rounding can take the mean of ones to 1.0000000000000002
    return replace(e, low=max(e.low, float(items.min())), high=min(e.high, float(items.max())))


def _by_influence(a: Aggregate, group: Tensor | None, level: float) -> Estimate:
    """The interval of a mean AUROC on the logit scale, because on the plain scale it could leave [0, 1]."""
    spread, value = float(sum_by_unit(a.influence(), group).square().sum().sqrt()), a.value
    if spread == 0 or not 0 < value < 1:
        return Estimate(value, reason=UNMOVED)
    half = normal_quantile((1 + level) / 2) * spread / (value * (1 - value))
    middle = math.log(value / (1 - value))
    low, high = (1 / (1 + math.exp(-(middle + sign * half))) for sign in (-1, 1))
    return Estimate(value, low, high, method="influence of each item, summed over cells, on the logit's scale")


def mean_ece(
    parts: Sequence[tuple[float, BinnedItems]], noise: Mapping[BinnedItems, Tensor], level: float
) -> tuple[float, float]:
    """The interval of Σ factor · ECE, given the noise [B, bins] of each cell under the same draws."""
    share = torch.cat([torch.full((len(g.held.count),), f, dtype=torch.float64) for f, g in parts])
    moved = torch.cat([noise[g] for _, g in parts], 1)
    observed = sum(f * g.ece for f, g in parts)
    held, tail = [g.held for _, g in parts], (1 - level) / 2
    least = _along(held, [calibration_intervals.concentrated(c) for c in held], moved, share, observed, 1 - tail)
    most = _along(held, [calibration_intervals.spread(c) for c in held], moved, share, observed, tail)
    return least, max(least, most)


def _along(
    held: Sequence[Cells], shapes: Sequence[Tensor], moved: Tensor, share: Tensor, observed: float, quantile: float
) -> float:
    """The population's value at which the quantile of the simulations equals the observed value; 0 if it is above it
    from the start."""
    values, ends = [], []
    for t in calibration_intervals.GRID.tolist():
        gap = torch.cat([c.mass * possible(c, t * s) for c, s in zip(held, shapes, strict=True)])
        values.append(float(gap.abs() @ share))
        ends.append(float(calibration_intervals.quantiles((gap + moved).abs() @ share, quantile)))
    if ends[0] >= observed:
        return 0.0
    return float(np.interp(observed, np.maximum.accumulate(ends), values))
