"""`StreamState`: what a panel of metrics needs of any number of items, in a fixed size. States of parts add up:

    state(whole) = state(part 1) + state(part 2) + …

Additive metrics are kept as sums. For the others (ranking, KS, equal-mass bins) items are counted on a *ladder*, a
histogram over the ordered bits of t = −log(1 − confidence). The exponent and the 14 leading bits of the mantissa of t
give the rung, so that a rung spans a relative 6.1e-5 of t, from 2⁻³⁴ to 2¹⁰. The order of items on one rung is lost;
`stream_report` bounds what that can change in each metric.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.binning import BinSums, equal_width
from calibrant.functional.scores import Classwise, Scores
from calibrant.metrics import METRICS, proper
from calibrant.metrics.bootstrap import merge
from calibrant.metrics.calibration import Kind
from calibrant.metrics.calibration_cells import Cells, cells_from_sums
from calibrant.metrics.panel import WALK, NoItemsError, Panel, Spread
from calibrant.metrics.proper import Column, Mean
from calibrant.metrics.refinement import Runs

MANTISSA = 14
_SHIFT = 52 - MANTISSA
_LOWEST, _HIGHEST = -34, 10  # powers of two of t at the two ends of the ladder; what lies beyond is on the end rungs
_BASE = (1023 + _LOWEST) << MANTISSA
RUNGS = (_HIGHEST - _LOWEST) << MANTISSA


MEANS: dict[str, Column] = {
    name: metric.compute.column for name, metric in METRICS.items() if isinstance(metric.compute, Mean)
}
"""The metrics that are means of a column."""


@dataclass(frozen=True)
class StreamState:
    """Sums over items. States with the same classes and bins add up, and their size does not depend on N."""

    k: int | None
    bins: int
    about: str
    n: int
    moments: Tensor  # [MEANS, 3]: Σ, Σ², Σ³ of each column; for NLL, over the labels with a probability above 0
    impossible: int  # labels with probability 0
    width: Tensor  # [4, bins]: count, Σ confidence, Σ correct, Σ confidence²
    ladder: Tensor  # [4, RUNGS]: correct and incorrect items, Σ confidence of both; most confident last
    classwise: Classwise | None
    grouped: bool

    def __add__(self, other: StreamState) -> StreamState:
        if (self.k, self.bins, self.about) != (other.k, other.bins, other.about):
            raise InputError(f"cannot join predictions of {self.k} and of {other.k} classes into one report")
        cells = None
        if self.classwise is not None and other.classwise is not None:
            cells = self.classwise + other.classwise
        return replace(
            self,
            n=self.n + other.n,
            moments=self.moments + other.moments,
            impossible=self.impossible + other.impossible,
            width=self.width + other.width,
            ladder=self.ladder + other.ladder,
            classwise=cells,
            grouped=self.grouped or other.grouped,
        )

    @property
    def used(self) -> Tensor:
        """The indices of the rungs that hold items, most confident first."""
        return (self.ladder[0] + self.ladder[1] > 0).nonzero()[:, 0].flip(0)

    def of(self, column: Column) -> Tensor:
        """Σ, Σ² and Σ³ of a column."""
        return self.moments[list(MEANS.values()).index(column)]


def rung(log_error: Tensor) -> Tensor:
    """The rung of each log(1 − confidence), in [0, RUNGS); higher for more confident items."""
    bits = (-log_error.double()).view(torch.int64) >> _SHIFT  # −0.0 has the sign bit, so it is the lowest
    return (bits - _BASE).clamp_(0, RUNGS - 1)


def floor_of(rungs: Tensor) -> Tensor:
    """The smallest t of each rung (0 for the lowest)."""
    t = ((rungs + _BASE) << _SHIFT).view(torch.float64)
    return torch.where(rungs <= 0, 0.0, t)


def empty_ladder() -> Tensor:
    return torch.zeros(4, RUNGS, dtype=torch.float64)


def state(scores: Scores) -> StreamState:
    """The state of these items."""
    ladder = empty_ladder()
    add_to_ladder(ladder, scores)
    return replace(sums(scores), ladder=ladder)


def add_to_ladder(ladder: Tensor, scores: Scores) -> None:
    """Count these items on the ladder, in place, because a ladder is larger than a batch."""
    at = torch.where(scores.correct, 0, RUNGS) + rung(scores.log_error)
    for rows, values in ((ladder[:2], torch.ones_like(scores.confidence)), (ladder[2:], scores.confidence)):
        rows.view(-1).index_add_(0, at, values)


def sums(scores: Scores) -> StreamState:
    """The state of these items with an empty ladder."""
    correct, confidence = scores.correct.double(), scores.confidence
    at = equal_width(confidence, scores.bins)
    impossible = 0 if scores.log_p_label is None else int(torch.isneginf(scores.log_p_label).sum())
    return StreamState(
        k=scores.k,
        bins=scores.bins,
        about=scores.about,
        n=scores.n,
        moments=torch.stack([_moments(column, scores) for column in MEANS.values()]),
        impossible=impossible,
        width=torch.stack([_sum(at, w, scores.bins) for w in (None, confidence, correct, confidence.square())]),
        ladder=torch.zeros(4, 0, dtype=torch.float64),
        classwise=scores.classwise,
        grouped=scores.group is not None,
    )


def _moments(column: Column, scores: Scores) -> Tensor:
    if scores.log_p_label is None and column in (proper.nll, proper.brier):
        return torch.zeros(3, dtype=torch.float64)  # not in a top-1 file
    x = column(scores)
    if not math.isfinite(float(x.sum())):
        x = x[torch.isfinite(x)]
    square = x.square()
    return torch.stack([x.sum(), square.sum(), square @ x])


def _sum(index: Tensor, weights: Tensor | None, size: int) -> Tensor:
    return torch.bincount(index, weights, minlength=size).double()


_ONE = 53 * math.log(2)  # from this t on, the confidence is exactly 1 in float64, so these items tie


class StreamPanel(Panel):
    """The sums that metrics use, of a stream."""

    def __init__(self, state: StreamState) -> None:
        self.state = state
        used = state.used
        self.t = floor_of(used)
        columns: list[Tensor] = list(state.ladder[:, used])
        self.good, self.bad, self.conf_good, self.conf_bad = columns
        self.n, self.k, self.about, self.classwise = state.n, state.k, state.about, state.classwise
        self.group = self.weights = None

    @property
    def scores(self) -> Scores:  # type: ignore[override]
        raise NoItemsError

    @property
    def right(self) -> int:
        return int(self.good.sum())

    @property
    def impossible(self) -> str | None:
        labels = self.state.impossible
        return f"{labels} labels were called impossible" if labels else None

    def mean_of(self, column: Column) -> Tensor:
        return self.state.of(column)[:1] / self.n

    @cached_property
    def runs(self) -> Runs:
        return Runs(self.good[None], self.bad[None])

    def spread_of(self, column: Column, mean: float) -> Spread:
        first, second, third = self.state.of(column).tolist()
        n = self.n
        square = max(second - n * mean**2, 0.0) / n**2
        cube = (third - 3 * mean * second + 3 * mean**2 * first - n * mean**3) / n**3
        return Spread(square, cube, -math.inf, math.inf)

    @cached_property
    def width(self) -> BinSums:
        return BinSums(*(row[None] for row in self.state.width[:3]))

    @cached_property
    def walk(self) -> Tensor:
        return ((self.conf_good + self.conf_bad - self.good) / self.n).flip(0)[None]

    def cells(self, kind: Kind) -> Cells:
        if kind == "width":
            return cells_from_sums(*self.state.width)
        confidence = self.conf_good + self.conf_bad
        if kind == "walk":
            columns = merge(self.good, self.bad, confidence, self.squares, cells=WALK)
            good, bad, confidence, square = (c.flip(0) for c in columns)
            return cells_from_sums(good + bad, confidence, good, square, smooth=True)
        m, inside = self.mass, torch.bincount(self.mass_bin, self.squares, minlength=self.state.bins)
        return cells_from_sums(m.count[0], m.confidence[0], m.correct[0], inside)

    @cached_property
    def squares(self) -> Tensor:
        """Σ confidence² of each rung, as if all its confidences were equal: a rung is narrow."""
        return (self.conf_good + self.conf_bad).square() / self.size

    @cached_property
    def size(self) -> Tensor:
        return self.good + self.bad

    @cached_property
    def too_low(self) -> Tensor:
        """Σ (1 − confidence) of the correct items on each rung: the most that the walk can fall there."""
        return (self.good - self.conf_good).clamp_min(0)

    @cached_property
    def too_high(self) -> Tensor:
        """Σ confidence of the incorrect items on each rung: the most that the walk can rise there."""
        return self.conf_bad

    @cached_property
    def mass_bin(self) -> Tensor:
        """The equal-mass bin of each rung, by its middle rank. All rungs with a confidence of exactly 1 are one run."""
        sure = (self.t >= _ONE).double()
        certain = float((self.size * sure).sum())
        end = self.state.n - (torch.cumsum(self.size, 0) - self.size)  # ranks from below: (end − size, end]
        middle = torch.where(sure > 0, self.state.n - certain / 2, end - self.size / 2)
        return (middle * self.state.bins / self.state.n).floor().long().clamp_(0, self.state.bins - 1)

    @cached_property
    def mass(self) -> BinSums:
        def total(values: Tensor) -> Tensor:
            return torch.bincount(self.mass_bin, values, minlength=self.state.bins)[None]

        return BinSums(total(self.size), total(self.conf_good + self.conf_bad), total(self.good))
