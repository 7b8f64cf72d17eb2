"""Values from a StreamState, each with a rigorous bound on its distance from the exact one.

Items on one rung of the ladder may stand in any order, with or without ties. For each metric the bound
is the worst that any such order can do; sums have bound 0. With G, E the correct and incorrect items above
a rung, and g, e those on it:

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
from calibrant.functional.scores import Scores
from calibrant.metrics import METRICS
from calibrant.metrics.calibration_cells import Cells, from_sums
from calibrant.metrics.streaming import StreamState, floor_of
from calibrant.metrics.table import Panel
from calibrant.types import Estimate

_ONE = 53 * math.log(2)  # from this t on, float64 confidence is exactly 1: one run of ties
_CROWDED = 28.0  # from this t on, confidences of neighbouring rungs may coincide in float64


class StreamPanel(Panel):
    """What metrics share, from sums instead of items. Rungs are listed most confident first."""

    def __init__(self, state: StreamState) -> None:
        self.state = state
        self.weights = None
        used = (state.ladder[0] + state.ladder[1] > 0).nonzero()[:, 0].flip(0)
        self.t = floor_of(used)
        columns: list[Tensor] = list(state.ladder[:, used])
        self.good, self.bad, self.conf_good, self.conf_bad = columns
        self.scores = witness(state)

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


Bounded = tuple[float, float]
"""(value, bound): the exact value differs by at most the bound."""


def _auroc(p: StreamPanel) -> Bounded:
    hidden = float((p.good * p.bad).sum() / 2 / (p.good.sum() * p.bad.sum()))
    return float(ranking.auroc(*p.runs)), hidden


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


def _aurc(p: StreamPanel) -> Bounded:
    value = float(ranking.aurc(*p.runs))
    high = float(ranking.aurc(*_nonempty(*_ordered(p, True))))
    low = float(ranking.aurc(*_nonempty(*_ordered(p, False))))
    return value, max(high - value, value - low, 0.0)


def _eaurc(p: StreamPanel) -> Bounded:
    value, bound = _aurc(p)
    return value - float(ranking.best_aurc(*p.runs)), bound


def _average_precision(positive: Tensor, negative: Tensor) -> Bounded:
    value = float(ranking.average_precision(positive[None], negative[None]))
    found = torch.cumsum(positive, 0) - positive
    seen = found + torch.cumsum(negative, 0) - negative
    best = positive * (found + positive) / (seen + positive).clamp_min(1)
    start = seen + negative  # Σ_{j=1…p} (F + j)/(start + j), in closed form
    harmonic = torch.digamma(start + positive + 1) - torch.digamma(start + 1)
    worst = positive + (found - start) * harmonic
    total = positive.sum()
    return value, max(float(best.sum() / total) - value, value - float(worst.sum() / total), 0.0)


def _fpr95(p: StreamPanel) -> Bounded:
    kept = torch.cumsum(p.good, 0) / p.good.sum()
    at = int((kept >= 0.95 - 1e-12).to(torch.uint8).argmax())
    return float(ranking.fpr_at_tpr(*p.runs)), float(p.bad[at] / p.bad.sum())


def _ks(p: StreamPanel) -> Bounded:
    signed = (p.conf_good + p.conf_bad - p.good).flip(0)  # least confident first
    end = torch.cumsum(signed, 0)
    start = end - signed
    value = float(end.abs().max())
    worst = torch.maximum((start + p.too_high.flip(0)).abs(), (start - p.too_low.flip(0)).abs())
    return value / p.state.n, max(float(worst.max()) - value, 0.0) / p.state.n


def _ece_mass(p: StreamPanel) -> Bounded:
    n, bins = p.state.n, p.state.bins
    end = n - (torch.cumsum(p.size, 0) - p.size)
    crowded = p.t >= _CROWDED
    low = torch.where(crowded, n - (p.size * crowded).sum(), end - p.size)
    high = torch.where(crowded, torch.full_like(end, n), end)
    first = (low * bins / n).floor().clamp_max(bins - 1)
    last = (high * bins / n).ceil().sub(1).clamp_min(0)
    moves = torch.where(last > first, p.too_low + p.too_high, 0.0)
    gap = p.mass.gap[0] * n
    return float(p.mass.gap.abs().sum()), _movable(moves, first.long(), last.long(), gap) * 2 / n


def _movable(moves: Tensor, first: Tensor, last: Tensor, gap: Tensor) -> float:
    """What may move between bins, less what cannot matter: between two bins whose gaps keep one sign
    whatever moves, |gap| + |gap| is the same."""
    loose = torch.zeros_like(gap)
    for at in (first, last):
        loose.index_add_(0, at, moves)
    sign = torch.where(gap.abs() > loose, gap.sign(), 0.0)
    same = (last - first == 1) & (sign[first] * sign[last] > 0)
    return float(moves[~same].sum())


def _mean(total: float | Tensor, p: StreamPanel) -> Bounded:
    return float(total) / p.state.n, 0.0


def _classwise(p: StreamPanel) -> Bounded:
    cells = p.state.classwise
    assert cells is not None
    return float((cells.confidence - cells.positive).abs().sum()) / (p.state.n * len(cells.count)), 0.0


def _from_width(name: str) -> Callable[[StreamPanel], Bounded]:
    return lambda p: (float(METRICS[name].compute(p)), 0.0)


VALUES: dict[str, Callable[[StreamPanel], Bounded]] = {
    "accuracy": lambda p: _mean(p.state.hits, p),
    "nll": lambda p: _mean(p.state.nll[0], p),
    "brier": lambda p: _mean(p.state.brier[0], p),
    "gap": lambda p: _mean(p.state.signed[0], p),
    **{n: _from_width(n) for n in ("ece", "ece_max", "ece_l2", "ece_over", "ece_under", "oe", "ece_debiased")},
    "ece_mass": _ece_mass,
    "ece_classwise": _classwise,
    "ks": _ks,
    "auroc": _auroc,
    "aupr_success": lambda p: _average_precision(p.good, p.bad),
    "aupr_error": lambda p: _average_precision(p.bad.flip(0), p.good.flip(0)),
    "aurc": _aurc,
    "eaurc": _eaurc,
    "fpr95": _fpr95,
}
"""Metric → (value, bound) from a stream."""


def missing(name: str, p: StreamPanel) -> str | None:
    """Why the value does not exist, in the words of the table; None when it does."""
    if name not in VALUES:
        return "not available from a stream"
    if name == "nll" and p.state.impossible:
        return f"infinite: {p.state.impossible} labels were called impossible (logit -inf)"
    return METRICS[name].missing(p.scores)


def value(name: str, p: StreamPanel) -> tuple[Estimate, float | None]:
    reason = missing(name, p)
    if reason is not None:
        return Estimate(None, reason=reason), None
    found, bound = VALUES[name](p)
    return Estimate(found), bound
