"""`Metric`: a function of scores and weights, with its direction and what it needs; `Panel`: the sums they all use.

    Metric: (Scores, weights[B, N] | None) -> value[B]

A `Panel` holds the sort and the bins, so that all metrics together sort once. Each `Scores` has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from calibrant.functional.binning import BinSums, bin_sums, equal_mass, equal_width
from calibrant.functional.ranking import Ranking, merged, rank, run_maxima, run_sums, run_weights
from calibrant.functional.scores import Scores
from calibrant.metrics.calibration import Kind
from calibrant.metrics.calibration_cells import Cells, cells
from calibrant.metrics.proper import Column
from calibrant.metrics.refinement import Runs

Family = Literal["proper", "calibration", "refinement"]

CELLS = 1024
"""The most cells that bootstrap replicates are drawn from."""

WALK = 60
"""Cells of the walk (the cumulative sum of gaps) whose largest excursion is KS."""


@dataclass(frozen=True)
class Spread:
    """Σu² and Σu³ of the items' influences u on a mean, and the smallest and the largest item."""

    square: float
    third: float
    least: float
    most: float


class NoItemsError(Exception):
    """A metric needs items, which a stream does not keep."""


class Panel:
    """The sort, the bins and the sums that all metrics of one `Scores` use, under one set of weights."""

    def __init__(self, scores: Scores, weights: Tensor | None = None, parent: Panel | None = None) -> None:
        self.scores = scores
        self.n, self.k, self.about = scores.n, scores.k, scores.about  # k is None for a top-1 file
        self.group, self.classwise = scores.group, scores.classwise
        self.weights = weights
        self._parent = parent  # the unweighted panel, whose sort and bins serve all weights
        self._cells: dict[Kind, Cells] = {}

    @property
    def right(self) -> int:
        """The number of correct items."""
        return self.scores.right

    @property
    def impossible(self) -> str | None:
        """A phrase that names a label with probability 0; None if there is none."""
        log_p = self.scores.log_p_label
        never = None if log_p is None else torch.isneginf(log_p)
        if never is None or not bool(never.any()):
            return None
        return f"the label in row {int(never.nonzero()[0])} was called impossible"

    def reweighted(self, weights: Tensor) -> Panel:
        """The same items under weights [B, N]; the sort and the bins are kept."""
        return Panel(self.scores, weights, self._parent or self)

    @cached_property
    def ranking(self) -> Ranking:
        return self._parent.ranking if self._parent else rank(self.scores.log_error)

    @cached_property
    def width_index(self) -> Tensor:
        return self._parent.width_index if self._parent else equal_width(self.scores.confidence, self.scores.bins)

    @cached_property
    def mass_index(self) -> Tensor:
        if self._parent:
            return self._parent.mass_index
        # the sort of the ranking serves here too: confidence falls as log(1 − confidence) rises, with the same ties
        order, confidence = self.ranking.positions, self.scores.confidence
        if self.ranking.runs < len(order):
            level = run_maxima(self.ranking, confidence)[self.ranking.run]
            confidence = torch.empty_like(level).scatter_(0, order, level)
        return equal_mass(confidence, self.scores.bins, order.flip(0))

    @cached_property
    def walk_index(self) -> Tensor:
        """The cell of each item along the walk of KS, least confident first."""
        at = torch.empty_like(self.scores.labels)
        at[self.ranking.positions] = merged(self.ranking, WALK)
        return at.max() - at

    @cached_property
    def merged_cells(self) -> tuple[Tensor, Panel]:
        """(order, panel) of the same items sorted by confidence, with runs merged into at most CELLS cells."""
        order, cell = self.ranking.positions, merged(self.ranking, CELLS)
        out = Panel(replace(self.scores.take(order), group=None))  # without groups, because weights are of items
        out.ranking = Ranking(None, cell, int(cell[-1]) + 1)
        out.width_index, out.mass_index = self.width_index[order], self.mass_index[order]
        return order, out

    def index(self, kind: Kind) -> Tensor:
        """The cell of each item."""
        found: Tensor = getattr(self, f"{kind}_index")
        return found

    def cells(self, kind: Kind) -> Cells:
        """The occupied cells and what their noise depends on, for intervals and tests."""
        if kind not in self._cells:
            s = self.scores
            self._cells[kind] = cells(self.index(kind), s.confidence, s.correct, s.group, smooth=kind == "walk")
        return self._cells[kind]

    @cached_property
    def width(self) -> BinSums:
        return self._sums(self.width_index)

    @cached_property
    def mass(self) -> BinSums:
        return self._sums(self.mass_index)

    @cached_property
    def walk(self) -> Tensor:
        """The gap of each run of ties, [B, R], least confident first."""
        ranked = self.ranking.ranked(self.signed)[None]
        if self.weights is not None:
            ranked = ranked * self.ranking.ranked(self.weights)
        sums = ranked if self.ranking.runs == len(self.signed) else run_sums(self.ranking, ranked)
        return sums.flip(1) / self.total[:, None]

    @cached_property
    def runs(self) -> Runs:
        return Runs(*run_weights(self.ranking, self.hits, self.weights))

    @cached_property
    def hits(self) -> Tensor:
        """Correctness of each item as 0 or 1."""
        return self._parent.hits if self._parent else self.scores.correct.double()

    @cached_property
    def signed(self) -> Tensor:
        """Confidence − correctness of each item."""
        return self._parent.signed if self._parent else self.scores.confidence - self.hits

    @cached_property
    def total(self) -> Tensor:
        """The total weight of each replicate, [B]."""
        if self.weights is None:
            return self.scores.confidence.new_tensor([float(self.scores.n)])
        return self.weights.double().sum(1)

    def mean_of(self, column: Column) -> Tensor:
        """The weighted mean of a column over the items, [B]."""
        values = column(self.scores).double()
        return values.mean()[None] if self.weights is None else (self.weights.double() @ values) / self.total

    def spread_of(self, column: Column, mean: float) -> Spread:
        values = column(self.scores)
        u = (values - mean) / self.n
        return Spread(*torch.stack([u.square().sum(), u.pow(3).sum(), values.min(), values.max()]).tolist())

    def _sums(self, index: Tensor) -> BinSums:
        s = self.scores
        return bin_sums(index, s.bins, s.confidence, s.correct, self.weights)


class Units(Protocol):
    """Sums over the items of units that are drawn whole: single items, groups of items, frames of a video."""

    @property
    def size(self) -> Tensor:
        """The number of items of each unit, [U]."""

    def sums(self, column: Column) -> Tensor:
        """The sum of a column over the items of each unit, [U]."""

    def drawn_runs(self, counts: Tensor) -> Runs:
        """The runs of the ranking when the units are drawn counts[B, U] times."""


class UnitPanel(Panel):
    """The sums that metrics use when unit u is drawn counts[B, u] times.

    Every sum over items is a sum over units, Σ_i w_i x_i = Σ_u counts_u Σ_{i in u} x_i. So the work for a replicate
    does not grow with the items of a unit: a video of 100 frames has millions of pixels, but only 100 rows of sums.
    """

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


@dataclass(frozen=True)
class Metric:
    """One line of the table `METRICS`. `missing` says why a value does not exist for a panel, or None."""

    name: str
    title: str
    family: Family
    better: Literal["low", "high", "zero"]
    compute: Callable[[Panel], Tensor]
    missing: Callable[[Panel], str | None] = lambda panel: None
    percent: bool = True
    default: bool = True

    def __call__(self, scores: Scores | Panel, weights: Tensor | None = None) -> Tensor:
        panel = scores if isinstance(scores, Panel) else Panel(scores)
        if weights is not None:
            panel = panel.reweighted(weights)
        return self.compute(panel)
