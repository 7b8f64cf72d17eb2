"""Units that are weighed whole: groups of items, frames of a video, all the items of a stream. Their sums say all:

    Σ_i w_u(i) x_i = Σ_u w_u Σ_{i in u} x_i

A video of 100 frames has millions of pixels, and every replicate is a weighted sum of the same 100 rows. Counts are
whole numbers, so the runs of a ranking are those of item weights exactly; means agree up to the order of summation.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from calibrant.functional.binning import BinSums, group_sums
from calibrant.metrics.proper import Column
from calibrant.metrics.refinement import Runs
from calibrant.metrics.table import Panel

NUMBERS = 1 << 23
"""The most numbers in a table of groups by cells of the ranking."""
AN_ITEM = 16
"""Beyond so many numbers in the table for an item, weights of items are the shorter way."""


class Units(Protocol):
    """Sums of each unit, in rows [U, …]. The rows of units that are merged add."""

    @property
    def size(self) -> Tensor:
        """Items, [U]."""

    def sums(self, column: Column) -> Tensor:
        """Σ of what a column is of each item, [U]."""

    @property
    def runs(self) -> Runs: ...

    @property
    def bin_sums(self) -> BinSums:
        """Of bins of equal width."""


class UnitPanel(Panel):
    """What metrics share when unit u is drawn counts[B, u] times."""

    def __init__(self, units: Units, counts: Tensor) -> None:
        self.units, self.counts = units, counts

    @cached_property
    def total(self) -> Tensor:
        return self.counts @ self.units.size

    def mean_of(self, column: Column) -> Tensor:
        return (self.counts @ self.units.sums(column)) / self.total

    @cached_property
    def runs(self) -> Runs:
        return Runs(*(self.counts @ each for each in self.units.runs))

    @cached_property
    def width(self) -> BinSums:
        return self.units.bin_sums.weighed(self.counts)


class Groups:
    """Groups of the items of a panel."""

    def __init__(self, panel: Panel, group: Tensor, count: int) -> None:
        self.panel, self.group, self.count = panel, group, count

    @cached_property
    def size(self) -> Tensor:
        return torch.bincount(self.group, minlength=self.count).double()

    def sums(self, column: Column) -> Tensor:
        return torch.bincount(self.group, column(self.panel.scores).double(), minlength=self.count)

    @cached_property
    def runs(self) -> Runs:
        good = self._by_run(self.panel.hits)
        return Runs(good, self._by_run() - good)

    @cached_property
    def walk(self) -> Tensor:
        """Σ (confidence − correctness) of each run, the least confident first, [U, R]."""
        return self._by_run(self.panel.signed).flip(1)

    @cached_property
    def bin_sums(self) -> BinSums:
        return self._binned(self.panel.width_index)

    @cached_property
    def mass_sums(self) -> BinSums:
        return self._binned(self.panel.mass_index)

    def _binned(self, index: Tensor) -> BinSums:
        s = self.panel.scores
        return BinSums(*(group_sums(self.group, self.count, index, s.bins, c) for c in (None, s.confidence, s.correct)))

    def _by_run(self, values: Tensor | None = None) -> Tensor:
        ranking = self.panel.ranking
        run = torch.empty_like(ranking.run).scatter_(0, ranking.positions, ranking.run)
        return group_sums(self.group, self.count, run, ranking.runs, values)


class GroupPanel(UnitPanel):
    """Every metric of the items when group g is drawn counts[B, g] times."""

    units: Groups

    @cached_property
    def walk(self) -> Tensor:
        return (self.counts @ self.units.walk) / self.total[:, None]

    @cached_property
    def mass(self) -> BinSums:
        return self.units.mass_sums.weighed(self.counts)


def pays(panel: Panel, count: int) -> bool:
    """Whether the table of groups by runs is small, both in itself and beside the items."""
    size = count * panel.ranking.runs
    return size <= NUMBERS and size <= AN_ITEM * panel.scores.n
