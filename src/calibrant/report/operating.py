"""Operating points: if items from some confidence on are accepted, how many are they, how accurate, how calibrated?

A point is a threshold t (accept confidence ≥ t) with exact numbers over the items. The stored thresholds are:

* round ones (0.00, 0.01, …, 0.99, 0.991, …, 0.9991, …), fixed before the data are seen, for readers who type one;
* quantiles of confidence, so that the slider moves evenly over the share accepted;
* for each usual target accuracy the exact threshold that accepts most at that accuracy, and the one that `decide`
  would choose: "95% accurate, and 95% sure of it", corrected for the search (`calibrant.decisions.threshold`).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions.grouped import Grouped
from calibrant.decisions.threshold import Ordered
from calibrant.functional.binning import equal_width
from calibrant.functional.binomial import Floats, wilson
from calibrant.functional.scores import Scores
from calibrant.metrics.bca import design_effect

QUANTILES = 600
TARGETS = (*(i / 100 for i in range(50, 100)), 0.995, 0.999)
ALPHA = 0.05


@dataclass(frozen=True)
class OperatingPoints:
    """Columns over ascending thresholds, about the items with confidence ≥ threshold."""

    n: int
    threshold: Floats
    accepted: NDArray[np.int64]
    correct: NDArray[np.int64]
    accuracy_low: Floats
    accuracy_high: Floats
    confidence: Floats  # mean over the accepted items
    ece: Floats
    ece_chance: Floats  # expected ECE of a perfectly calibrated model with these items
    sure: dict[float, int | None]  # target accuracy → the point that `decide` chooses for it
    effective: float  # independent items, as a share of all (1 without groups)

    @property
    def coverage(self) -> Floats:
        return self.accepted / self.n

    @property
    def accuracy(self) -> Floats:
        return self.correct / np.maximum(self.accepted, 1)

    def at_accuracy(self, target: float, *, sure: bool = False) -> int | None:
        """Return the point that accepts most at this accuracy (`sure`: the promised point of the next target)."""
        if sure:
            return next((at for goal, at in self.sure.items() if goal >= target), None)
        good = np.flatnonzero((self.accuracy >= target) & (self.accepted > 0))
        return int(good[np.argmax(self.accepted[good])]) if len(good) else None


def operating_points(scores: Scores) -> OperatingPoints:
    """Return exact numbers at about 900 thresholds at most, whatever the number of items, with one sort."""
    order = np.argsort(scores.confidence.numpy(), kind="stable")
    conf = scores.confidence.numpy()[order]
    hit = scores.correct.numpy()[order].astype(np.int64)
    fixed = round_thresholds(scores.k if scores.about == "top label" else None)
    share = effective_share(scores)
    held = promised(conf, hit, None if scores.group is None else scores.group.numpy()[order])
    thresholds, first = _distinct(conf, fixed, _chosen(conf, hit), set(held.values()) - {np.inf})
    accepted = len(conf) - first
    above = np.concatenate([np.cumsum(hit[::-1])[::-1], [0]])
    sure = np.concatenate([np.cumsum(conf[::-1])[::-1], [0.0]])
    correct = above[first]
    low, high = wilson(correct * share, accepted * share)
    ece, chance = _ece(conf, hit, first, scores)
    return OperatingPoints(
        n=len(conf),
        threshold=thresholds,
        accepted=accepted,
        correct=correct,
        accuracy_low=low,
        accuracy_high=high,
        confidence=sure[first] / np.maximum(accepted, 1),
        ece=ece,
        ece_chance=chance,
        sure={goal: int(np.searchsorted(thresholds, t)) if t <= 1 else None for goal, t in held.items()},
        effective=share,
    )


def promised(conf: Floats, hit: NDArray[np.int64], group: NDArray[np.int64] | None) -> dict[float, float]:
    """Return, for each target accuracy, the threshold that `decide` chooses (infinite: none). `conf` is ascending."""
    wrong = 1 - hit.astype(np.float64)
    items = Ordered.of(conf, wrong) if group is None else Grouped(conf, wrong, group)
    return {goal: items.choose(1 - goal, ALPHA).threshold for goal in TARGETS}


def round_thresholds(k: int | None) -> Floats:
    """Return 0, two-digit thresholds above 1/K (the least confidence of a top label), and nine per decade of 1 − t."""
    near_one = [1 - i / 10**d for d in range(3, 9) for i in range(9, 0, -1)]
    grid = [0.0, *(i / 100 for i in range(1, 100)), *near_one]
    least = 0.0 if k is None else 1 / k
    return np.array([0.0, *(float(f"{t:.10g}") for t in grid if t > least)])


def effective_share(scores: Scores) -> float:
    """Return 1/(design effect) of the accuracy: how many independent items an item in a group counts as."""
    return 1.0 if scores.group is None else 1 / max(1.0, design_effect(scores.correct.double(), scores.group))


def shortest_between(below: float, upto: float) -> float:
    """Return the decimal with the fewest digits in (below, upto]: it accepts the same items and is easy to read."""
    for digits in range(1, 18):
        step = Decimal(1).scaleb(-digits)
        candidate = float(Decimal(below).quantize(step, rounding=ROUND_CEILING))
        if candidate <= below:
            candidate = float(Decimal(below).quantize(step, rounding=ROUND_CEILING) + step)
        if below < candidate <= upto:
            return candidate
    return upto


def _chosen(conf: Floats, hit: NDArray[np.int64]) -> Floats:
    """Return thresholds at quantiles of confidence and at the best coverage for each target accuracy."""
    start = np.flatnonzero(np.concatenate([[True], conf[1:] != conf[:-1]]))  # first of each run of ties
    accepted = len(conf) - start
    accuracy = np.cumsum(hit[::-1])[::-1][start] / accepted
    wanted = {int(np.searchsorted(start, q)) for q in np.linspace(0, len(conf) - 1, QUANTILES)}
    for target in TARGETS:
        good = np.flatnonzero(accuracy >= target)
        if len(good):
            wanted.add(int(good[0]))
    runs = sorted(i for i in wanted if i < len(start))
    below = [float(conf[start[i] - 1]) if start[i] else max(0.0, float(conf[0]) - 0.01) for i in runs]
    return np.array([shortest_between(b, float(conf[start[i]])) for i, b in zip(runs, below, strict=True)])


def _distinct(conf: Floats, fixed: Floats, chosen: Floats, kept: set[float]) -> tuple[Floats, NDArray[np.int64]]:
    """Return (threshold, first accepted item): the shortest of those that accept the same items, and all in `kept`."""
    best: dict[int, tuple[bool, int, float]] = {}
    for is_chosen, values in ((False, fixed), (True, chosen)):
        for t, first in zip(values.tolist(), np.searchsorted(conf, values, side="left").tolist(), strict=True):
            rank = (is_chosen, len(repr(t)), t)
            if first < len(conf) and (first not in best or rank < best[first]):
                best[first] = rank
    threshold = np.array(sorted({t for _, _, t in best.values()} | kept))
    return threshold, np.searchsorted(conf, threshold, side="left")


def _ece(conf: Floats, hit: NDArray[np.int64], first: NDArray[np.int64], scores: Scores) -> tuple[Floats, Floats]:
    """Return the ECE of the accepted items at each threshold, and its expectation under perfect calibration.

    The expectation: bin b's gap is about normal with variance Σ p(1 − p)/n², so E|gap| = √(2/π)·sd.
    """
    sorted_conf = scores.confidence.sort().values
    index = equal_width(sorted_conf, scores.bins).numpy()
    segment = np.searchsorted(first, np.arange(len(conf)), side="right") - 1  # −1: accepted nowhere
    cell = (segment + 1) * scores.bins + index
    shape = (len(first) + 1, scores.bins)

    def above(values: Floats) -> Floats:
        sums = np.bincount(cell, values, minlength=shape[0] * shape[1]).reshape(shape)[1:]
        return np.asarray(np.cumsum(sums[::-1], 0)[::-1])

    size = np.maximum(len(conf) - first, 1)[:, None]
    gap = np.abs(above(conf - hit)) / size
    sd = np.sqrt(np.maximum(above(conf * (1 - conf)), 0)) / size
    return gap.sum(1), (np.sqrt(2 / np.pi) * sd).sum(1)
