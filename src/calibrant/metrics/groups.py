"""Groups that are drawn whole, from sums of each group: a weight per group instead of one per item,

    Σ_i w_g(i) x_i = Σ_g w_g Σ_{i in g} x_i

A video of 100 frames has millions of pixels, and every replicate is a weighted sum of the same 100 rows. Counts are
whole numbers, so the runs of a ranking are those of item weights exactly; means agree up to the order of summation.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from calibrant.functional.binning import BinSums
from calibrant.metrics.table import Panel

NUMBERS = 1 << 23
"""The most numbers in a table of groups by cells of the ranking."""
AN_ITEM = 16
"""Beyond so many numbers in the table for an item, weights of items are the shorter way."""


class Groups:
    """The group of each item of a panel, and what its ranking's cells hold of each."""

    def __init__(self, panel: Panel, group: Tensor, count: int) -> None:
        self.panel, self.group, self.count = panel, group, count

    @cached_property
    def sizes(self) -> Tensor:
        return torch.bincount(self.group, minlength=self.count).double()

    def sums(self, values: Tensor) -> Tensor:
        """Σ of a per-item column in each group, [G]."""
        return torch.bincount(self.group, values.double(), minlength=self.count)

    def table(self, index: Tensor, columns: int, values: Tensor | None = None) -> Tensor:
        """How many items (or the sum of their values) each group has at each index, [G, columns]."""
        weights = None if values is None else values.double()
        flat = torch.bincount(self.group * columns + index, weights, minlength=self.count * columns)
        return flat.double().view(self.count, columns)

    @cached_property
    def cell(self) -> Tensor:
        """The run of ties that each item is in."""
        ranking = self.panel.ranking
        return torch.empty_like(ranking.run).scatter_(0, ranking.positions, ranking.run)

    def by_run(self, values: Tensor | None = None) -> Tensor:
        """The same of each run, [G, R]."""
        return self.table(self.cell, self.panel.ranking.runs, values)

    @cached_property
    def runs(self) -> tuple[Tensor, Tensor]:
        """(good, bad) items of each group in each run, [G, R]."""
        good = self.by_run(self.panel.hits)
        return good, self.by_run() - good


class Grouped(Panel):
    """The items of `groups` when group g was drawn counts[B, g] times."""

    def __init__(self, groups: Groups, counts: Tensor) -> None:
        super().__init__(groups.panel.scores, counts, groups.panel)  # weights, but of groups
        self.groups, self.counts = groups, counts

    @cached_property
    def runs(self) -> tuple[Tensor, Tensor]:
        good, bad = self.groups.runs
        return self.counts @ good, self.counts @ bad

    @cached_property
    def total(self) -> Tensor:
        return self.counts @ self.groups.sizes

    def mean(self, values: Tensor) -> Tensor:
        return (self.counts @ self.groups.sums(values)) / self.total

    def by_run(self, values: Tensor) -> Tensor:
        return self.counts @ self.groups.by_run(values)

    def _sums(self, index: Tensor) -> BinSums:
        s = self.scores
        columns = (None, s.confidence, s.correct)
        return BinSums(*(self.counts @ self.groups.table(index, s.bins, c) for c in columns))


def pays(panel: Panel, count: int) -> bool:
    """Whether the table of groups by runs is small, both in itself and beside the items."""
    size = count * panel.ranking.runs
    return size <= NUMBERS and size <= AN_ITEM * panel.scores.n
