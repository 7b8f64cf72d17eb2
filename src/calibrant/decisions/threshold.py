"""Accept an answer if its confidence is at least t: the largest coverage whose answers are right often enough.

The promise is about new items: with probability 1 − δ over the items that t was chosen on, P(wrong | confidence ≥ t) is
at most α, the risk that was asked for.

* Candidates are chosen without the labels. The candidate of size m is t, just above x, the (m + 1)-th largest
  confidence. Given x, the m items above it are independent draws from all items above x, so the errors of those with
  confidence ≥ t are Binomial(count, risk(t)), and P(Bin(count, α) ≤ errors) is an exact p-value for "t is too risky"
  (Clopper & Pearson 1934; Geifman & El-Yaniv 2017). Other losses in [0, 1] have Hoeffding–Bentkus's (Bates 2021).
* Candidates are tested from the safest to the boldest. δ is divided among a few starts, each with at least twice the
  items of the one before. A candidate that passes hands its part of δ to the next, so a run of candidates that pass
  costs nothing (learn then test, Angelopoulos 2021; the fallback procedure of Wiens 2003).

Proof that the search keeps the promise if errors do not become rarer as confidence falls. A candidate is too risky if
and only if its x lies below some fixed s, that is if m ≥ N, the number of items at s or above. Given N and all
confidences below s, such a candidate accepts N draws from above s and certain items below it. All of them err with
probability α or more, so its errors are at least those of a Bin(count, α), and its p-value is valid. The first such
candidate holds at most the δ that entered up to it. Each later one holds only the δ that enters there, as long as all
such candidates before it failed. So given N, the probability that any of them passes is at most the sum of these: δ.

If errors are rarer at some lower confidence, each test is still exact, but the candidates that are too risky depend on
more than N, and the search as a whole rests on simulations (`benchmarks/decide.py`, the rows with a dip).

Items must be independent draws like those the rule will meet; `grouped.py` treats items that come in groups. By class
or group, each has a promise of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import ROUND_FLOOR, Decimal
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.decisions.rule import Decisions, Rule, asked, floor, percent
from calibrant.errors import InputError
from calibrant.functional.binomial import Floats, exact_lower
from calibrant.functional.scores import reduce
from calibrant.types import Predictions

STARTS = 5
"""The largest number of starts, each with its part of δ. After a candidate fails, the search goes on at the next."""
ROOM = 1.6
"""The first start has this many times the items that pass if all answers are right, so that a few may be wrong."""
STEPS = 50
"""The number of candidates from one start to the next."""
DIGITS = 4
"""Digits of a threshold: 0.8312, 0.99876."""


@dataclass(frozen=True, eq=False)
class Threshold(Rule):
    """Accept if the confidence in the predicted class is at least `threshold`, which is infinite to accept nothing."""

    threshold: Tensor  # [1], or one entry for each class or group
    loss: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))  # [K, K] if one was given
    kind: ClassVar[str] = "threshold"
    needs_logits: ClassVar[bool] = False

    def decide(self, p: Predictions) -> Decisions:
        scores = reduce(p, classwise=False)
        known = len(self.threshold)
        if self.by == "class" and bool((scores.predicted >= known).any()):  # possible for a top-1 set only
            raise InputError(
                f"{p.source or 'these predictions'}: class {int(scores.predicted.max())} was not among the {known} "
                "that the rule was chosen on; choose the rule on items of that class too"
            )
        least = self.threshold[self.cell(p, scores.predicted)]
        return Decisions(accepted=scores.confidence >= least, predicted=scores.predicted)

    def in_graph(self, logits: Tensor, predicted: Tensor, confidence: Tensor, unknown: Tensor) -> tuple[Tensor, ...]:
        least = self.threshold[predicted] if self.by == "class" else self.threshold
        return ((confidence >= least) & ~unknown,)

    @property
    def formula(self) -> str:
        return "p = softmax(z'); a = argmax p; accept if p_a ≥ threshold"

    @property
    def sentence(self) -> str:
        c = self.record.certificate
        if self.by is None:
            what = f"accept when confidence ≥ {float(self.threshold):.12g}: {percent(c['coverage'])} of items"
        else:
            what = f"accept by a threshold for each {self.by}: {percent(c['coverage'])} of items"
            if none := int(self.threshold.isinf().sum()):
                what += f" (none of {none} of the {len(self.threshold)})"
        if c["new"] is not None:
            what += f" (of new ones {percent(c['new'][0])} to {percent(c['new'][1])})"
        sure, each = asked(c["guarantee"]), "" if self.by is None else f" in each {self.by}, taken separately"
        if self.grouped:
            each = f" in a group, on average over groups{each}"
        if c["loss"] is None:
            promised = f"accepted answers are right at least {floor(1 - c['risk'])} of the time{each}"
            seen = f"{percent(1 - c['seen'])} seen"
        else:
            promised = f"the mean {c['loss']} of accepted answers is at most {c['risk'] * c['scale']:.4g}{each}"
            seen = f"{c['seen'] * c['scale']:.4g} seen"
        held = f"guaranteed with {sure} confidence"
        if self.grouped and "accept" in self.record.settings:
            held = f"with about {sure} confidence, not guaranteed: the threshold comes from the same groups"
        said = f"{what}; {promised} ({held}; {seen})"
        if "threshold" in self.record.settings:
            said += "; the threshold was given, not searched for: it must have been chosen without these items"
        return said


@dataclass(frozen=True)
class Candidates:
    """Thresholds from the safest to the boldest, how many items each accepts, and the share of δ that enters there."""

    threshold: Floats
    count: NDArray[np.int64]
    share: Floats


def candidates(confidence: Floats, risk: float, delta: float) -> Candidates | None:
    """The candidates for confidences in falling order; None if there are too few. No label is used."""
    n = len(confidence)
    for starts in range(STARTS, 0, -1):
        first = ROOM * needed(risk, delta / starts)
        if first * 2 ** (starts - 1) <= n:
            break
    else:
        starts, first = 1, needed(risk, delta)
    if first > n:
        return None
    grid = np.geomspace(first, n, STEPS * max(1, starts - 1) + 1).round().astype(int)
    sizes, at = np.unique(grid, return_inverse=True)
    x = [-np.inf if m == n else float(confidence[m]) for m in sizes]
    threshold = np.array([just_above(value) for value in x])
    count = np.searchsorted(-confidence, -threshold, side="right")
    share = np.bincount(at[::STEPS][:starts], minlength=len(sizes)) / starts
    few = int((count < needed(risk, delta)).sum())  # ties make these too small to pass, so they hand on their share
    share[few] += share[:few].sum()
    return Candidates(threshold[few:], count[few:], share[few:])


def just_above(x: float) -> float:
    """A short decimal just above x, with DIGITS digits of x or of 1 − x, whichever is smaller."""
    if x < 0:
        return 0.0
    if x >= 1:
        return float("inf")
    exact = Decimal(x)
    near = min(exact, 1 - exact) or Decimal("1e-12")
    unit = Decimal(1).scaleb(near.adjusted() - DIGITS + 1)
    t = float(((exact / unit).to_integral_value(ROUND_FLOOR) + 1) * unit)
    return t if x < t <= 1 else float(np.nextafter(x, 2))


def binomial_p(errors: Floats, count: NDArray[Any], risk: float) -> Floats:
    """P(Bin(count, risk) ≤ errors), which is small if so few errors would be luck at a higher risk."""
    from scipy.special import betainc

    right = count - errors
    return np.asarray(np.where(right > 0, betainc(np.maximum(right, 1e-9), errors + 1, 1 - risk), 1.0))


def hoeffding_bentkus_p(total: Floats, count: NDArray[np.int64], risk: float) -> Floats:
    """The p-value for losses in [0, 1] with this total: the smaller of Hoeffding's and Bentkus's tail."""
    from scipy.special import xlogy

    size = np.maximum(count, 1)
    mean = np.minimum(total / size, risk)
    divergence = xlogy(mean, mean / risk) + xlogy(1 - mean, (1 - mean) / (1 - risk))
    bentkus = np.e * binomial_p(np.ceil(total - 1e-9), count, risk)
    return np.asarray(np.where(count > 0, np.minimum(np.exp(-size * divergence), np.minimum(bentkus, 1.0)), 1.0))


def passes(p: Floats, share: Floats, delta: float) -> NDArray[np.bool_]:
    """Which candidates pass the fallback procedure. One that passes hands on all it holds; one that fails loses it."""
    held = 0.0
    out: list[bool] = []
    for value, entering in zip(p.tolist(), (delta * share).tolist(), strict=True):
        held += entering
        out.append(value <= held)
        held = held if out[-1] else 0.0
    return np.array(out, bool)


def needed(risk: float, delta: float) -> int:
    """The smallest number of items with which anything can be promised."""
    return int(np.ceil(np.log(delta) / np.log1p(-risk)))


PValue = Callable[[Floats, NDArray[np.int64], float], Floats]


@dataclass(frozen=True)
class Chosen:
    """A threshold and what it accepts. If no threshold passes, it is infinite and accepts nothing."""

    threshold: float = float("inf")
    count: int = 0  # accepted items, or groups in which something is accepted
    total: float = 0.0  # the sum of their losses
    accepted: int = 0  # accepted items


@dataclass(frozen=True)
class Ordered:
    """The items of a class or group, the surest first: confidence, and the total loss of the first 0, 1, … of them."""

    confidence: Floats
    total: Floats
    p_value: PValue

    @classmethod
    def of(cls, confidence: Floats, loss: Floats, p_value: PValue = binomial_p) -> Ordered:
        order = np.argsort(-confidence, kind="stable")
        return cls(confidence[order], np.concatenate([[0.0], np.cumsum(loss[order])]), p_value)

    def choose(self, risk: float, delta: float) -> Chosen:
        """The threshold of the largest coverage that passes."""
        c = candidates(self.confidence, risk, delta)
        if c is None:
            return Chosen()
        total = self.total[c.count]
        good = np.flatnonzero(passes(self.p_value(total, c.count, risk), c.share, delta))
        if not len(good):
            return Chosen()
        best = good[np.argmax(c.count[good])]
        return Chosen(float(c.threshold[best]), int(c.count[best]), float(total[best]), int(c.count[best]))

    @property
    def units(self) -> int:
        return len(self.confidence)

    def bound(self, chosen: Chosen, delta: float) -> float:
        """The upper bound of the error rate above a threshold."""
        return 1 - float(exact_lower(chosen.count - chosen.total, chosen.count, delta))

    def surest(self, share: float) -> Chosen:
        """The threshold that accepts this share of the items, or as near to it as ties allow. No label is used."""
        n = len(self.confidence)
        m = max(1, round(n * share))
        x = -1.0 if m >= n else float(self.confidence[m])
        below = self.confidence[np.searchsorted(-self.confidence, -x, side="right") :]
        found = [self.at(just_above(v)) for v in (x, float(below[0]) if len(below) else -1.0)]
        return min((c for c in found if c.count), key=lambda c: abs(c.count - m), default=Chosen())

    def at(self, t: float) -> Chosen:
        """What this threshold accepts."""
        count = int(np.searchsorted(-self.confidence, -t, side="right"))
        return Chosen(t, count, float(self.total[count]), count)


def least_risk(kept: Callable[[float], bool]) -> float:
    """The smallest risk that is kept, by bisection, rounded up."""
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if kept(middle) else (middle, high)
    return high
