"""Inductive Venn–Abers predictors (Vovk, Petej and Fedorova 2015): two isotonic fits bracket the truth.

For a new score s, add (s, 0) to the calibration pairs and let p₀ be the isotonic regression at s; add (s, 1) for p₁.
One of the two is calibrated, whatever the distribution. The single number with the least log-loss in the worst case is
(their §4)

    q = p₁ / (1 − p₀ + p₁)

Both are step functions of s with few steps, which are found once (their Alg. 1–4, on the cumulative-sum diagram). The
points of the diagram are P_i = (x_i, y_i) = (items, hits) among the i lowest distinct scores. A new hit between the
scores i and i + 1 has

    p₁ = max_{c ≤ i} min_{j ≥ c} (y_j − y_c + 1)/(x_j − x_c + 1)

Here s_c is the least slope from P_c to the points ahead, with the new hit counted. A line with this slope holds until
some P_i falls below it, and then s_i is larger: so p₁ is the running maximum of the s_c. A new miss is a new hit once
scores and labels are turned around. A score that ties with calibration scores joins their group.

The certificate holds the mean width p₁ − p₀ over the calibration scores, which says how far the two disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.functional.binning import ROUNDING
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.one_vs_rest import Kind, joined, kind_of, odds, scores_and_hits, top_odds
from calibrant.posthoc.step_functions import Floats, Step, compressed, grouped, packed, step_function
from calibrant.posthoc.toplabel import Top, TopLabelMap
from calibrant.types import Predictions


@dataclass(frozen=True, eq=False)
class VennAbersMap(TopLabelMap):
    """p₀ and p₁ of the top label's log-odds."""

    edges0: Tensor
    values0: Tensor
    edges1: Tensor
    values1: Tensor
    method: ClassVar[str] = "venn_abers"

    def interval(self, score: Tensor) -> tuple[Tensor, Tensor]:
        """(p₀, p₁) of each log-odds."""
        p0 = step_function(score, self.edges0, self.values0, right=True)
        return p0, step_function(score, self.edges1, self.values1)

    def confidence(self, top: Top) -> Tensor:
        p0, p1 = self.interval(top_odds(top).score)
        return p1 / (1 - p0 + p1)


@dataclass(frozen=True, eq=False)
class VennAbersRestMap(FittedMap):
    """p₀ and p₁ of each class against the rest; the rows are normalised."""

    edges0: Tensor
    values0: Tensor
    offset0: Tensor
    edges1: Tensor
    values1: Tensor
    offset1: Tensor
    method: ClassVar[str] = "venn_abers_rest"
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int | None:
        return len(self.offset0) - 1

    def transform(self, logits: Tensor) -> Tensor:
        score = odds(logits).score
        p0 = step_function(score, self.edges0, self.values0, self.offset0, right=True)
        p1 = step_function(score, self.edges1, self.values1, self.offset1)
        return joined(torch.log(p1) - torch.log(1 - p0 + p1), logits)

    def summary(self) -> dict[str, Any]:
        return {"steps": len(self.values0) + len(self.values1), "classes": self.k}


@dataclass(frozen=True)
class VennAbers(Calibrator):
    """Venn–Abers predictors: two isotonic fits bracket the truth (Vovk 2015)."""

    kind: Kind = "top"
    name: ClassVar[str] = "venn_abers"
    map: ClassVar[type[FittedMap]] = VennAbersMap
    maps: ClassVar[tuple[type[FittedMap], ...]] = (VennAbersRestMap,)
    takes_top1: ClassVar[bool] = True
    cost: ClassVar[int] = 3  # a loop over the classes
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"kind": "one_vs_rest"})

    def solve(self, p: Predictions) -> FittedMap:
        self.need(p.n, 2, "one point has no slope")
        kind = kind_of(self.kind, p, self.name)
        lows, highs, widths = [], [], []
        for score, hit in scores_and_hits(p, kind):
            low, high = lower_steps(score, hit), upper_steps(score, hit)
            lows.append(low)
            highs.append(high)
            widths.append(np.mean(high(score, right=False) - low(score, right=True)))
        record = certified({"kind": kind, "mean_width": float(np.mean(widths))})
        low_tensors, high_tensors = packed(lows), packed(highs)
        if kind == "top":
            return VennAbersMap(*low_tensors[:2], *high_tensors[:2], record=record)
        return VennAbersRestMap(*low_tensors, *high_tensors, record=record)


def upper_steps(score: Floats, hit: NDArray[np.bool_]) -> Step:
    """p₁ as a function of s: the isotonic value of a new hit at s. A score on an edge takes the step on its left."""
    value, size, hits = grouped(score, hit, 1.0)
    x, y = (np.concatenate([[0.0], np.cumsum(c)]) for c in (size, hits))
    reach = value + ROUNDING * np.maximum(np.abs(value), 1.0)  # scores that tie up to rounding stay in the step
    return compressed(reach, np.maximum.accumulate(least_slopes(x, y)))


def least_slopes(x: Floats, y: Floats, block: int = 256) -> Floats:
    """s_i = min_{j ≥ i} (y_j − y_i + 1)/(x_j − x_i + 1), a block of i at a time from the right.

    Only a point before a hit can be the minimum, because a miss ahead lowers the slope. Among the points right of a
    block, only those on their lower convex hull can.
    """
    out = np.empty(len(x))
    before_hit = np.append(y[1:] > y[:-1], True)
    hull: list[int] = []  # leftmost last
    for a in range((len(x) - 1) // block * block, -1, -block):
        i = np.arange(a, min(a + block, len(x)))
        inside = i[before_hit[i]]
        ahead = np.concatenate([inside, np.array(hull, dtype=np.int64)])
        slope = (y[ahead] - y[i, None] + 1) / np.maximum(x[ahead] - x[i, None] + 1, 1.0)
        out[i] = np.where(ahead >= i[:, None], slope, np.inf).min(1)
        for j in inside[::-1].tolist():
            while len(hull) > 1 and _above(x, y, j, hull[-1], hull[-2]):
                hull.pop()
            hull.append(j)
    return out


def _above(x: Floats, y: Floats, left: int, middle: int, right: int) -> bool:
    """Whether the middle point lies on or above the line from left to right."""
    return bool((y[middle] - y[left]) * (x[right] - x[middle]) >= (y[right] - y[middle]) * (x[middle] - x[left]))


def lower_steps(score: Floats, hit: NDArray[np.bool_]) -> Step:
    """p₀ as a function of s, by turning scores and labels around. A score on an edge takes the step on its right."""
    turned = upper_steps(-score, ~hit)
    return Step(-turned.edges[::-1].copy(), 1 - turned.values[::-1])
