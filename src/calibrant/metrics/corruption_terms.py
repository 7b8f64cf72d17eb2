"""Numbers that can be averaged and divided with their uncertainty: what aggregates over corruptions are made of.

A term has a value and the influence of each item on it, d value / d weight. Means and ratios of terms are terms. Where
everything below is a plain mean over items, its bootstrap replicates are exact.

ECE keeps its bins. Averaging cells averages their noise but not the bias that noise gives to |gap|, so a centre with a
spread cannot cover: the interval of a mean ECE inverts a test, as `calibration_intervals` does for one cell. Along
lines t · shape of population gaps of all bins of all cells at once, the mean ECE is simulated with the noise that items
bring into all cells together, and the interval is the population's value over those t at which the observed one is
unsurprising. The lower end takes the gaps shrunk by what noise explains, the upper end none below its own noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.metrics import calibration_intervals
from calibrant.metrics.calibration_cells import Cells, cells, possible
from calibrant.metrics.table import Metric, Panel


@dataclass(frozen=True)
class Gaps:
    """One cell's occupied bins, and what each item adds to the gap of its bin."""

    held: Cells
    which: Tensor  # [N] occupied bin of each item
    signed: Tensor  # [N] confidence − correct

    @classmethod
    def of(cls, panel: Panel) -> Gaps:
        s = panel.scores
        which = torch.unique(panel.width_index, return_inverse=True)[1]
        return cls(cells(panel.width_index, s.confidence, s.correct, s.group), which, s.confidence - s.correct.double())

    @property
    def ece(self) -> float:
        return float((self.held.mass * self.held.gap).abs().sum())

    def noise(self, w: Tensor) -> Tensor:
        """What other draws of the items (weights [B, N] that sum to 1) would add to the gaps: [B, bins]."""
        member = torch.nn.functional.one_hot(self.which, len(self.held.count)).double() * self.signed[:, None]
        return w @ member - member.mean(0)


class Term:
    """Abstract: `value`, `linear`, `influence()`, and `replicates(w)` where linear."""

    value: float
    linear: bool

    def influence(self) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define influence")

    def replicates(self, w: Tensor) -> Tensor:
        """Values [B] under weights [B, N] that sum to 1."""
        raise TypeError(f"{type(self).__name__} has no replicates")


class Linear(Term):
    """The mean of a value per item."""

    linear = True

    def __init__(self, items: Tensor) -> None:
        self.items = items
        self.value = float(items.mean())

    def influence(self) -> Tensor:
        return (self.items - self.value) / len(self.items)

    def replicates(self, w: Tensor) -> Tensor:
        return w @ self.items


@dataclass(frozen=True)
class Smooth(Term):
    """A metric by its influence: AUROC."""

    value: float
    slope: Tensor | None
    linear: bool = False

    @classmethod
    def of(cls, metric: Metric, panel: Panel, influence: Callable[[Metric, Panel], Tensor] | None) -> Smooth:
        return cls(float(metric(panel)), None if influence is None else influence(metric, panel))

    def influence(self) -> Tensor:
        assert self.slope is not None, "values without intervals carry no influence"
        return self.slope


@dataclass(frozen=True)
class Binned(Term):
    """The mean ECE of some cells."""

    parts: tuple[Gaps, ...]
    linear: bool = False

    @property
    def value(self) -> float:  # type: ignore[override]
        return sum(p.ece for p in self.parts) / len(self.parts)


@dataclass(frozen=True)
class Combined(Term):
    """Σ_j factor_j · term_j: to first order everything here is one."""

    terms: tuple[Term, ...]
    factors: tuple[float, ...]
    value: float
    linear: bool

    def influence(self) -> Tensor:
        return torch.stack([f * t.influence() for f, t in zip(self.factors, self.terms, strict=True)]).sum(0)

    def replicates(self, w: Tensor) -> Tensor:
        return torch.stack([f * t.replicates(w) for f, t in zip(self.factors, self.terms, strict=True)]).sum(0)


def mean(terms: Sequence[Term]) -> Term:
    """The average; of plain means it is again one, of each item's average."""
    if all(isinstance(t, Linear) for t in terms):
        return Linear(torch.stack([t.items for t in terms if isinstance(t, Linear)]).mean(0))
    if all(isinstance(t, Binned) for t in terms):
        return Binned(tuple(p for t in terms if isinstance(t, Binned) for p in t.parts))
    share = 1 / len(terms)
    return Combined(
        tuple(terms),
        (share,) * len(terms),
        share * sum(t.value for t in terms),
        all(t.linear for t in terms),
    )


class Ratio(Term):
    """above / below, each a term; its influence is that of the quotient."""

    def __init__(self, above: Term, below: Term) -> None:
        self.above, self.below = above, below
        self.linear = above.linear and below.linear
        self.value = _divided(above.value, below.value)

    def influence(self) -> Tensor:
        return (self.above.influence() - self.value * self.below.influence()) / self.below.value

    def replicates(self, w: Tensor) -> Tensor:
        return self.above.replicates(w) / self.below.replicates(w)


def _divided(above: float, below: float) -> float:
    if below:
        return above / below
    return float("nan") if above == 0 else float("inf")


def ratio(above: Sequence[Term], below: Sequence[Term]) -> Term:
    """Σ above / Σ below, the corruption error of one type (SS Eq. 34): equally many terms, so means will do."""
    return Ratio(mean(above), mean(below))


def over_given(term: Term) -> tuple[tuple[Gaps, ...], tuple[float, ...]] | None:
    """A ratio of mean ECEs, or a mean of such, as Σ factor · ECE of the model's cells, the reference's given."""
    if isinstance(term, Ratio) and isinstance(term.above, Binned) and term.below.value > 0:
        parts = term.above.parts
        return parts, (1 / (len(parts) * term.below.value),) * len(parts)
    if not isinstance(term, Combined):
        return None
    found = [over_given(t) for t in term.terms]
    known = [pair for pair in found if pair is not None]
    if len(known) < len(found):
        return None
    factors = tuple(f * w for f, (_, own) in zip(term.factors, known, strict=True) for w in own)
    return tuple(p for parts, _ in known for p in parts), factors


def binned(term: Term) -> tuple[Gaps, ...]:
    """The cells whose bins a term stands on."""
    if isinstance(term, Binned):
        return term.parts
    if isinstance(term, Ratio):
        return binned(term.above) + binned(term.below)
    if isinstance(term, Combined):
        return tuple(p for t in term.terms for p in binned(t))
    return ()


def mean_ece(
    parts: Sequence[Gaps], noise: Sequence[Tensor], level: float, weights: Sequence[float] | None = None
) -> tuple[float, float]:
    """Ends of the interval of the mean over cells; `noise` [B, bins] of each cell under the same draws.

    `weights` are the cells' factors, 1/cells for a mean; those of mCECE are 1/(types · Σ_s of the reference).
    """
    factors = [1 / len(parts)] * len(parts) if weights is None else list(weights)
    share = torch.cat(
        [torch.full((len(p.held.count),), f, dtype=torch.float64) for p, f in zip(parts, factors, strict=True)]
    )
    moved = torch.cat(list(noise), 1)
    observed = sum(f * p.ece for f, p in zip(factors, parts, strict=True))
    tail = (1 - level) / 2
    least = _along(parts, [calibration_intervals.concentrated(p.held) for p in parts], moved, share, observed, 1 - tail)
    most = _along(parts, [calibration_intervals.spread(p.held) for p in parts], moved, share, observed, tail)
    return least, max(least, most)


def _along(
    parts: Sequence[Gaps], shapes: Sequence[Tensor], moved: Tensor, share: Tensor, observed: float, quantile: float
) -> float:
    """The population's value at which `quantile` of what is drawn meets what was observed; 0 where it begins above."""
    values, ends = [], []
    for t in calibration_intervals.GRID.tolist():
        gap = torch.cat([p.held.mass * possible(p.held, t * s) for p, s in zip(parts, shapes, strict=True)])
        values.append(float(gap.abs() @ share))
        ends.append(float(torch.quantile((gap + moved).abs() @ share, quantile)))
    if ends[0] >= observed:
        return 0.0
    return float(np.interp(observed, np.maximum.accumulate(ends), values))
