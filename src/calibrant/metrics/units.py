"""Sums over units that are drawn whole: single items, groups of items, frames of a video, all items of a stream.

A bootstrap replicate draws unit u `counts[u]` times, so that every sum over items is a sum over units:

    Σ_i w_i x_i = Σ_u counts_u Σ_{i in u} x_i

Metrics of a replicate are computed from these sums. Nothing that is done once per replicate grows with the items of a
unit: a video of 100 frames has millions of pixels, but only 100 rows of sums.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from calibrant.metrics.panel import Panel
from calibrant.metrics.proper import Column
from calibrant.metrics.refinement import Runs

if TYPE_CHECKING:
    from scipy.sparse import csr_array


class Units(Protocol):
    """Sums over the items of each of U units."""

    @property
    def size(self) -> Tensor:
        """Items of each unit, [U]."""

    def sums(self, column: Column) -> Tensor:
        """Σ of a column over the items of each unit, [U]."""

    def drawn_runs(self, counts: Tensor) -> Runs:
        """The runs of the ranking when the units are drawn counts[B, U] times."""


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
        return self.units.drawn_runs(self.counts)


class Groups:
    """The items of a panel summed by group; without groups, every item is one of its own."""

    def __init__(self, panel: Panel, group: Tensor, count: int) -> None:
        self.scores, self.group, self.count = panel.scores, group, count
        ranking = panel.ranking
        run = torch.empty_like(ranking.run).scatter_(0, ranking.positions, ranking.run)
        hit = panel.hits.bool()
        self._good, self._bad = (self._by_run(run[which], group[which], ranking.runs) for which in (hit, ~hit))

    def _by_run(self, run: Tensor, group: Tensor, runs: int) -> csr_array:
        """How many of these items each group has in each run, [runs, U]; sparse, because an item is in one run."""
        from scipy.sparse import csr_array

        ones = torch.ones(len(run), dtype=torch.float64)
        return csr_array((ones.numpy(), (run.numpy(), group.numpy())), shape=(runs, self.count))

    @cached_property
    def size(self) -> Tensor:
        return torch.bincount(self.group, minlength=self.count).double()

    def sums(self, column: Column) -> Tensor:
        return torch.bincount(self.group, column(self.scores).double(), minlength=self.count)

    def drawn_runs(self, counts: Tensor) -> Runs:
        drawn = counts.T.contiguous().numpy()
        return Runs(*(torch.from_numpy(table @ drawn).T.contiguous() for table in (self._good, self._bad)))
