"""Scaling–binning (Kumar, Liang and Ma 2019, Alg. 1): the variance of scaling, the measurable error of binning.

1. Fit a scaling g to the top label's log-odds (Platt). 2. Cut its outputs into B bins of equal mass. 3. Replace g by
its mean in each bin. The output takes B values, so the calibration error can be *measured*, not only bounded from
below. Only step 1 uses labels, so the variance hardly grows with B. (For its proof the paper splits the data in three.
Like its code, we use all data in every step.)

The certificate holds this measurement on items that the map has not seen: each half of the data is judged by the map of
the other half, with the paper's debiased estimator of the squared error (§5), Σ_b n_b/n [(g_b − ȳ_b)² − ȳ_b(1 −
ȳ_b)/(n_b − 1)].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.functional.binning import mass_bins, settled
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.one_vs_rest import top_odds
from calibrant.posthoc.platt import platt
from calibrant.posthoc.step_functions import place
from calibrant.posthoc.toplabel import Top, TopLabelMap, top_of
from calibrant.types import Predictions


@dataclass(frozen=True, eq=False)
class ScalingBinningMap(TopLabelMap):
    """The mean of g = σ(a s + b) in its bin."""

    a: Tensor
    b: Tensor
    edges: Tensor  # inner edges of the bins of g
    value: Tensor
    method: ClassVar[str] = "scaling_binning"

    def bins(self, score: Tensor) -> Tensor:
        return place(torch.sigmoid(self.a * score + self.b), self.edges)

    def confidence(self, top: Top) -> Tensor:
        return self.value[self.bins(top_odds(top).score)]


@dataclass(frozen=True)
class ScalingBinning(Calibrator):
    """Scaling, then binning (Kumar 2019)."""

    bins: int = 15
    name: ClassVar[str] = "scaling_binning"
    map: ClassVar[type[FittedMap]] = ScalingBinningMap
    takes_top1: ClassVar[bool] = True
    cost: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.bins >= 1, "bins", "must be at least 1")

    def solve(self, p: Predictions) -> FittedMap:
        self.need(p.n, self.bins, f"one for each of {self.bins} bins; ask for fewer with bins=")
        top = top_of(p)
        score, correct = top_odds(top).score.cpu(), (top.predicted == p.labels).double().cpu()
        record = certified(verified(score, correct, self.bins))
        return scaled_and_binned(score, correct, self.bins, record=record)


def scaled_and_binned(score: Tensor, correct: Tensor, bins: int, **record: Any) -> ScalingBinningMap:
    """Carry out steps 1 to 3."""
    a, b = platt(score[:, None], correct[:, None])[0][0]
    g = torch.from_numpy(settled(torch.sigmoid(a * score + b).numpy())[0])
    index, edges = mass_bins(g, bins)
    return ScalingBinningMap(a.clone(), b.clone(), edges, torch.bincount(index, g) / torch.bincount(index), **record)


def verified(score: Tensor, correct: Tensor, bins: int) -> dict[str, Any]:
    """Measure the debiased calibration error on unseen halves. They depend on content, so row order does not matter."""
    order = torch.argsort(score, stable=True)
    order = order[torch.argsort(correct[order], stable=True)]
    square, n = 0.0, len(score)
    if n < 4 * bins:
        return {"bins": bins, "reason": f"{n} items are too few to verify {bins} bins on unseen halves"}
    for half in (0, 1):
        inside, outside = order[half::2], order[1 - half :: 2]
        made = scaled_and_binned(score[inside], correct[inside], bins)
        index = made.bins(score[outside])
        size = torch.bincount(index, minlength=len(made.value)).double()
        seen = size > 1
        rate = (torch.bincount(index, correct[outside], minlength=len(made.value)) / size)[seen]
        size, value = size[seen], made.value[seen]
        square += float((size * ((value - rate).square() - rate * (1 - rate) / (size - 1))).sum()) / n
    return {
        "bins": bins,
        "calibration_error": math.sqrt(max(square, 0.0)),
        "squared_error_debiased": square,
        "verified_on": "two halves, each judged by the map of the other",
    }
