"""What metrics and intervals share, from a stream's sums instead of items, and a rigorous bound on each value.

Items on one rung of the ladder may stand in any order, with or without ties. For each metric that can tell, the bound
is the worst that any such order can do; sums are exact. With G, E the correct and incorrect items above a rung, and
g, e those on it:

    AUROC      Σ g·e/2 over all pairs                    (each pair on a rung counts 0, ½ or 1; we say ½)
    AURC       between 'errors first' and 'errors last' on every rung
    AUPR       a found item's precision lies in [(F+j)/(S+j+q), (F+p)/(S+p)], F, S found and seen above it
    FPR95      the threshold lies on one rung: its errors
    KS         the walk may leave its ends on a rung by Σ|confidence − correct| of one sign
    ECE mass   only rungs that straddle a boundary of the bins can be split: 2 Σ|confidence − correct| there
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from calibrant.functional import ranking
from calibrant.functional.binning import BinSums
from calibrant.functional.scores import Classwise, Scores
from calibrant.metrics.calibration_cells import Cells, from_sums
from calibrant.metrics.cells import merge
from calibrant.metrics.streaming import MEANS, StreamState, floor_of
from calibrant.metrics.table import WALK, Column, Metric, Panel, Spread
from calibrant.types import Estimate

_ONE = 53 * math.log(2)  # from this t on, float64 confidence is exactly 1: one run of ties
_CROWDED = 28.0  # from this t on, confidences of neighbouring rungs may coincide in float64


class NoItemsError(Exception):
    """A metric asked for items, which a stream does not keep."""


class StreamPanel(Panel):
    """What metrics share, from sums instead of items. Rungs are listed most confident first."""

    def __init__(self, state: StreamState) -> None:
        self.state = state
        self.weights = None
        used = (state.ladder[0] + state.ladder[1] > 0).nonzero()[:, 0].flip(0)
        self.t = floor_of(used)
        columns: list[Tensor] = list(state.ladder[:, used])
        self.good, self.bad, self.conf_good, self.conf_bad = columns

    @property
    def scores(self) -> Scores:  # type: ignore[override]
        raise NoItemsError

    @property
    def group(self) -> Tensor | None:
        return None

    @property
    def classwise(self) -> Classwise | None:
        return self.state.classwise

    @property
    def n(self) -> int:
        return self.state.n

    @cached_property
    def total(self) -> Tensor:
        return torch.tensor([float(self.n)], dtype=torch.float64)

    def mean_of(self, column: Column) -> Tensor:
        return self._moments(column)[:1] / self.n

    def spread_of(self, column: Column, mean: float) -> Spread:
        first, second, third = self._moments(column).tolist()
        n = self.n
        square = max(second - n * mean**2, 0.0) / n**2
        cube = (third - 3 * mean * second + 3 * mean**2 * first - n * mean**3) / n**3
        return Spread(square, cube, -math.inf, math.inf)

    def _moments(self, column: Column) -> Tensor:
        return self.state.moments[list(MEANS.values()).index(column)]

    @cached_property
    def width(self) -> BinSums:
        count, confidence, correct, _ = self.state.width
        return BinSums(count[None], confidence[None], correct[None])

    @cached_property
    def width_cells(self) -> Cells:
        return from_sums(*self.state.width)

    @cached_property
    def runs(self) -> tuple[Tensor, Tensor]:
        return self.good[None], self.bad[None]

    @cached_property
    def walk(self) -> Tensor:
        return (self.conf_good + self.conf_bad - self.good)[None]

    @cached_property
    def walk_cells(self) -> Cells:
        good, bad, confidence, square = (
            c.flip(0) for c in merge(self.good, self.bad, self.conf_good + self.conf_bad, self.squares, cells=WALK)
        )
        return from_sums(good + bad, confidence, good, square, smooth=True)

    @cached_property
    def mass_cells(self) -> Cells:
        m, inside = self.mass, torch.bincount(self.mass_bin, self.squares, minlength=self.state.bins)
        return from_sums(m.count[0], m.confidence[0], m.correct[0], inside)

    @cached_property
    def squares(self) -> Tensor:
        """Σ confidence² of each rung, which is too narrow for it to vary."""
        return (self.conf_good + self.conf_bad).square() / self.size

    @cached_property
    def size(self) -> Tensor:
        return self.good + self.bad

    @cached_property
    def too_low(self) -> Tensor:
        """Σ (1 − confidence) of the correct items on each rung: how far the walk can fall."""
        return (self.good - self.conf_good).clamp_min(0)

    @cached_property
    def too_high(self) -> Tensor:
        """Σ confidence of the incorrect items: how far it can climb."""
        return self.conf_bad

    @cached_property
    def mass_bin(self) -> Tensor:
        """Equal-mass bin of each rung, by its middle rank from the least confident; certainty is one run."""
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


def witness(state: StreamState) -> Scores:
    """One correct and one incorrect item, as far as there are any: enough for 'does this metric exist?'."""
    right, wrong = bool(state.ladder[0].any()), bool(state.ladder[1].any())
    correct = torch.tensor([True] * right + [False] * wrong)
    half = torch.full((len(correct),), 0.5, dtype=torch.float64)
    known = state.k is not None
    return Scores(
        labels=torch.zeros(len(correct), dtype=torch.long),
        predicted=torch.zeros(len(correct), dtype=torch.long),
        correct=correct,
        confidence=half,
        log_error=half.log(),
        log_p_label=half.log() if known else None,
        brier=half if known else None,
        k=state.k,
        bins=state.bins,
        classwise=state.classwise,
        about=state.about,
    )


def _auroc(p: StreamPanel) -> float:
    return float((p.good * p.bad).sum() / 2 / (p.good.sum() * p.bad.sum()))


def _ordered(p: StreamPanel, errors_first: bool) -> tuple[Tensor, Tensor]:
    """Each rung cut in two runs, all errors of it before (or after) all its correct items."""
    zero = torch.zeros_like(p.good)
    first, second = (p.bad, p.good) if errors_first else (p.good, p.bad)
    if errors_first:
        return torch.stack([zero, second], 1).reshape(1, -1), torch.stack([first, zero], 1).reshape(1, -1)
    return torch.stack([first, zero], 1).reshape(1, -1), torch.stack([zero, second], 1).reshape(1, -1)


def _nonempty(good: Tensor, bad: Tensor) -> tuple[Tensor, Tensor]:
    keep = (good + bad)[0] > 0
    return good[:, keep], bad[:, keep]


def _aurc(p: StreamPanel) -> float:
    value = float(p.aurc)
    high = float(ranking.aurc(*_nonempty(*_ordered(p, True))))
    low = float(ranking.aurc(*_nonempty(*_ordered(p, False))))
    return max(high - value, value - low, 0.0)


def _average_precision(positive: Tensor, negative: Tensor) -> float:
    value = float(ranking.average_precision(positive[None], negative[None]))
    found = torch.cumsum(positive, 0) - positive
    seen = found + torch.cumsum(negative, 0) - negative
    best = positive * (found + positive) / (seen + positive).clamp_min(1)
    start = seen + negative  # Σ_{j=1…p} (F + j)/(start + j), in closed form
    harmonic = torch.digamma(start + positive + 1) - torch.digamma(start + 1)
    worst = positive + (found - start) * harmonic
    total = positive.sum()
    return max(float(best.sum() / total) - value, value - float(worst.sum() / total), 0.0)


def _fpr95(p: StreamPanel) -> float:
    kept = torch.cumsum(p.good, 0) / p.good.sum()
    at = int((kept >= 0.95 - 1e-12).to(torch.uint8).argmax())
    return float(p.bad[at] / p.bad.sum())


def _ks(p: StreamPanel) -> float:
    signed = p.walk[0].flip(0)  # least confident first
    end = torch.cumsum(signed, 0)
    start = end - signed
    worst = torch.maximum((start + p.too_high.flip(0)).abs(), (start - p.too_low.flip(0)).abs())
    return max(float(worst.max() - end.abs().max()), 0.0) / p.n


def _ece_mass(p: StreamPanel) -> float:
    n, bins = p.state.n, p.state.bins
    end = n - (torch.cumsum(p.size, 0) - p.size)
    crowded = p.t >= _CROWDED
    low = torch.where(crowded, n - (p.size * crowded).sum(), end - p.size)
    high = torch.where(crowded, torch.full_like(end, n), end)
    first = (low * bins / n).floor().clamp_max(bins - 1)
    last = (high * bins / n).ceil().sub(1).clamp_min(0)
    moves = torch.where(last > first, p.too_low + p.too_high, 0.0)
    gap = p.mass.gap[0] * n
    return _movable(moves, first.long(), last.long(), gap) * 2 / n


def _movable(moves: Tensor, first: Tensor, last: Tensor, gap: Tensor) -> float:
    """What may move between bins, less what cannot matter: between two bins whose gaps keep one sign
    whatever moves, |gap| + |gap| is the same."""
    loose = torch.zeros_like(gap)
    for at in (first, last):
        loose.index_add_(0, at, moves)
    sign = torch.where(gap.abs() > loose, gap.sign(), 0.0)
    same = (last - first == 1) & (sign[first] * sign[last] > 0)
    return float(moves[~same].sum())


BOUNDS: dict[str, Callable[[StreamPanel], float]] = {
    "ece_mass": _ece_mass,
    "ks": _ks,
    "auroc": _auroc,
    "aupr_success": lambda p: _average_precision(p.good, p.bad),
    "aupr_error": lambda p: _average_precision(p.bad.flip(0), p.good.flip(0)),
    "aurc": _aurc,
    "eaurc": _aurc,
    "fpr95": _fpr95,
}
"""Metric → how far its value from a stream can be from the exact one; of all others, which are sums, 0."""


def streamed(metric: Metric, p: StreamPanel) -> Estimate:
    """The value, or why it does not exist."""
    if metric.name == "nll" and p.state.impossible:
        return Estimate(None, reason=f"infinite: {p.state.impossible} labels were called impossible (logit -inf)")
    reason = metric.missing(witness(p.state))
    if reason is not None:
        return Estimate(None, reason=reason)
    try:
        return Estimate(float(metric.compute(p)))
    except NoItemsError:
        return Estimate(None, reason="not available from a stream")
