"""Isotonic regression (Zadrozny 2002): the non-decreasing function of a probability with the least squared error.

PAVA needs the data only as *groups*: each distinct value of a hit, and each run of misses between two such values.
One-vs-rest columns have few hits, so one fast sort of the values and a binary search of the hits replace the
argsort of N pairs, and PAVA runs on a few dozen groups.

Between two blocks the function is linear, as in scikit-learn; outside it is constant. `kind="top"` maps the confidence
of the predicted class; `kind="one_vs_rest"` maps every class and normalises the rows. Logits never carry exactly 0 or
1: for them, a first block at 0 or a last block at 1 counts half an item of the other kind.

`isotonic_centred` (Oron and Flournoy 2017) has no flat steps. PAVA gives all scores of a block the same value, which
ties them and loses refinement. The centred form replaces a block by one point, its mean score with its value. So the
function increases strictly between the points, and the ranking within a block is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.functional.binning import settled
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap, still_impossible
from calibrant.posthoc.one_vs_rest import Kind, probabilities_and_hits
from calibrant.posthoc.step_functions import Floats, end_to_end, interpolate, tensors
from calibrant.posthoc.toplabel import Top, TopLabelMap, least
from calibrant.types import Predictions


@dataclass(frozen=True)
class Knots:
    """One non-decreasing function. PAVA makes two knots per block, first and last x. `soft` is y without 0 or 1."""

    x: Floats
    y: Floats
    soft: Floats


def pava(values: Floats, hit: NDArray[np.bool_]) -> Knots:
    """Isotonic regression of hits on values."""
    from scipy.optimize import isotonic_regression

    values, ordered = settled(values)
    at, hits = np.unique(values[hit], return_counts=True)
    left, right = np.searchsorted(ordered, at, "left"), np.searchsorted(ordered, at, "right")
    # groups in order: misses below the first hit, hit 1, misses between 1 and 2, hit 2, …, misses above the last
    start = np.empty(2 * len(at) + 1, dtype=np.int64)
    start[0], start[1::2], start[2::2] = 0, left, right
    size = np.diff(np.append(start, len(ordered)))
    total = np.zeros(len(start))
    total[1::2] = hits
    kept = size > 0
    start, size, total = start[kept], size[kept], total[kept]
    fit = isotonic_regression(total / size, weights=size)
    block = fit.blocks[:-1]
    first = start[block]
    last = np.append(first[1:], len(ordered)) - 1
    y = fit.x[block]
    count = np.diff(np.append(first, len(ordered)))
    x = np.stack([ordered[first], ordered[last]], 1).reshape(-1)
    return Knots(x, np.repeat(y, 2), np.repeat(_soften(y, count), 2))


def _soften(y: Floats, count: NDArray[np.int64]) -> Floats:
    soft = y.copy()
    if y[0] == 0:
        soft[0] = least(count[0]) if len(y) == 1 else min(least(count[0]), y[1] / 2)
    if y[-1] == 1:
        soft[-1] = 1 - least(count[-1]) if len(y) == 1 else max(1 - least(count[-1]), (1 + y[-2]) / 2)
    return soft


def centred(knots: Knots, values: Floats) -> Knots:
    """One knot per block of PAVA, at the mean of the `values` in it."""
    first, last = knots.x[::2], knots.x[1::2]
    ordered = settled(values)[1]
    low = np.searchsorted(ordered, first, "left")
    high = np.searchsorted(ordered, last, "right")
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    centre = np.clip((total[high] - total[low]) / (high - low), first, last)
    return Knots(centre, knots.y[::2], knots.soft[::2])


@dataclass(frozen=True, eq=False)
class IsotonicMap(TopLabelMap):
    """Confidence → isotonic value."""

    x: Tensor
    y: Tensor
    soft_y: Tensor
    method: ClassVar[str] = "isotonic"

    @property
    def degrees(self) -> int:
        return len(self.x) // 2

    def confidence(self, top: Top) -> Tensor:
        return interpolate(top.confidence, self.x, self.y)

    def soft(self, top: Top) -> Tensor:
        return interpolate(top.confidence, self.x, self.soft_y).clamp(self.floor, 1 - self.floor)


@dataclass(frozen=True, eq=False)
class IsotonicRestMap(FittedMap):
    """One function per class: the knots of class c are x[offset_c : offset_{c+1}]."""

    x: Tensor
    y: Tensor
    offset: Tensor
    method: ClassVar[str] = "isotonic_rest"
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int:
        return len(self.offset) - 1

    @property
    def degrees(self) -> int:
        return len(self.x) // 2

    def transform(self, logits: Tensor) -> Tensor:
        q = interpolate(torch.softmax(logits, -1), self.x, self.y, self.offset)
        return still_impossible(torch.log(q), logits)

    def summary(self) -> dict[str, Any]:
        return {"blocks": self.degrees, "classes": self.k}


@dataclass(frozen=True)
class Isotonic(Calibrator):
    """Isotonic regression of a probability (Zadrozny 2002)."""

    kind: Kind = "top"
    name: ClassVar[str] = "isotonic"
    map: ClassVar[type[FittedMap]] = IsotonicMap
    maps: ClassVar[tuple[type[FittedMap], ...]] = (IsotonicRestMap,)
    takes_top1: ClassVar[bool] = True
    cost: ClassVar[int] = 0
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"kind": "one_vs_rest"})

    def solve(self, p: Predictions) -> FittedMap:
        self.need(p.n, 2, "one point has no slope")
        found = [self.knots(values, hit) for values, hit in probabilities_and_hits(p, self.kind, self.name)]
        record = certified({"kind": self.kind, **self.size(sum(len(knots.x) for knots in found))})
        if self.kind == "top":
            return IsotonicMap(*tensors(found[0].x, found[0].y, found[0].soft), record=record)
        return IsotonicRestMap(*end_to_end([(knots.x, knots.soft) for knots in found]), record=record)

    def knots(self, values: Floats, hit: NDArray[np.bool_]) -> Knots:
        """The function of one column."""
        return pava(values, hit)

    def size(self, knots: int) -> dict[str, int]:
        """What the certificate says about this many knots."""
        return {"blocks": knots // 2}


@dataclass(frozen=True)
class CentredIsotonic(Isotonic):
    """Isotonic regression without its flat steps (Oron and Flournoy 2017).

    `kind` as for isotonic.
    """

    name: ClassVar[str] = "isotonic_centred"

    def knots(self, values: Floats, hit: NDArray[np.bool_]) -> Knots:
        return centred(pava(values, hit), values)

    def size(self, knots: int) -> dict[str, int]:
        return {"points": knots}
