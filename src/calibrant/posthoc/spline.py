"""CDF splines (Gupta et al. 2021): calibrate the confidence through the derivative of a smoothed cumulative.

Sort by score, and let t = i/N. The running difference  h(t) = 1/N Σ_{j≤i} (correct_j − score_j)  is the signed
Kolmogorov–Smirnov curve. A natural cubic spline with few knots is fitted to it by least squares. Its derivative h' is
accuracy minus score at that rank (their Prop. 4.1), so

    γ(score) = score + h'(t(score)).

A calibrated model has h = 0, and its scores stay as they are. `within=r` calibrates the probability that the label is
among the r highest classes (their within-top-r); r = 1 is the top label's confidence.

Differs from the paper, whose γ can fall while the score rises, and can leave [0, 1]:

- All scores whose γ is below (above) the smallest (largest) probability that N items can show get one value: the rate
  of hits among them, by Laplace's rule (hits + 1)/(items + 2). So no confidence is exactly 0 or 1.
- Then isotonic regression makes γ monotone. As in centred isotonic regression (`isotonic.py`), a block becomes one
  point at its mean score, and γ is linear between the points, so that scores inside a block are not tied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.errors import InputError
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.step_functions import grouped, interpolate
from calibrant.posthoc.toplabel import Top, TopLabelMap, least, log_sum_exp, top_of
from calibrant.types import Predictions

POINTS = 512
"""The map keeps this many calibration scores, evenly spaced in rank. γ is smooth in the rank, so it is nearly linear
between them."""


@dataclass(frozen=True, eq=False)
class SplineMap(TopLabelMap):
    """Confidence → γ, linear between the kept scores."""

    x: Tensor
    y: Tensor
    knots: int
    method: ClassVar[str] = "spline"

    @property
    def degrees(self) -> int:
        return self.knots  # the points are samples of the spline

    def confidence(self, top: Top) -> Tensor:
        return interpolate(top.confidence, self.x, self.y)

    def summary(self) -> dict[str, Any]:
        return {"points": len(self.x)}


@dataclass(frozen=True, eq=False)
class SplineWithinMap(FittedMap):
    """The total probability of the r highest classes → γ. Proportions among these, and among the others, are kept."""

    x: Tensor
    y: Tensor
    within: int
    method: ClassVar[str] = "spline_within"
    keeps_label: ClassVar[bool] = False

    def transform(self, logits: Tensor) -> Tensor:
        inside = torch.zeros_like(logits).scatter(-1, logits.topk(self.within, -1).indices, 1.0) > 0
        log_in = log_sum_exp(logits.masked_fill(~inside, -torch.inf))
        log_out = log_sum_exp(logits.masked_fill(inside, -torch.inf))
        mass = interpolate(torch.sigmoid(log_in - log_out), self.x, self.y)
        alone = torch.isneginf(log_out)  # no other class is possible
        shift = torch.where(inside, torch.log(mass) - log_in, torch.log1p(-mass) - log_out)
        return torch.where(alone, logits, logits + shift)


@dataclass(frozen=True)
class Spline(Calibrator):
    """CDF splines of the confidence (Gupta 2021).

    `knots` of the spline, evenly spaced in rank (the paper uses 6).
    """

    knots: int = 6
    within: int = 1
    name: ClassVar[str] = "spline"
    map: ClassVar[type[FittedMap]] = SplineMap
    maps: ClassVar[tuple[type[FittedMap], ...]] = (SplineWithinMap,)
    takes_top1: ClassVar[bool] = True
    cost: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.knots >= 2, "knots", "must be at least 2")
        self.require(self.within >= 1, "within", "must be at least 1: it counts classes")

    def solve(self, p: Predictions) -> FittedMap:
        self.need(p.n, 2 * self.knots, f"two for each of {self.knots} knots; ask for fewer with knots=")
        record = certified({"knots": self.knots, "within": self.within})
        if self.within == 1:
            top = top_of(p)
            x, y = cdf_spline(top.confidence.cpu().numpy(), (top.predicted == p.labels).cpu().numpy(), self.knots)
            return SplineMap(x, y, self.knots, floor=least(p.n), record=record)
        if p.logits is None or p.logits.shape[1] <= self.within:
            raise InputError(f"{self.name} with within={self.within} needs logits of more than {self.within} classes")
        high = torch.softmax(p.logits.double(), 1).topk(self.within, 1)
        hit = (high.indices == p.labels[:, None]).any(1)
        x, y = cdf_spline(high.values.sum(1).clamp_max(1.0).cpu().numpy(), hit.cpu().numpy(), self.knots)
        return SplineWithinMap(x, y, self.within, record=record)


def cdf_spline(score: NDArray[np.float64], correct: NDArray[np.bool_], knots: int) -> tuple[Tensor, Tensor]:
    """Return scores, and γ at them, to interpolate between. γ is non-decreasing and strictly between 0 and 1."""
    from scipy.interpolate import CubicSpline
    from scipy.optimize import isotonic_regression

    n = len(score)
    value, size, hits = grouped(score, correct)  # ties are one step of the curve, so that row order cannot matter
    t = np.cumsum(size) / n
    h = np.cumsum(hits - size * value) / n
    at = np.linspace(0, 1, knots)
    basis = CubicSpline(at, np.eye(knots), bc_type="natural")
    weight = np.sqrt(size)
    coefficients = np.linalg.lstsq(basis(t) * weight[:, None], h * weight, rcond=None)[0]
    # the derivative over a run of ties is its mean slope: h after it minus h before it, divided by its width
    before = t - size / n
    slope = (basis(t) - basis(before)) @ coefficients / (size / n)
    gamma = value + slope
    for outside in (gamma <= least(n), gamma >= 1 - least(n)):
        gamma[outside] = (hits[outside].sum() + 1) / (size[outside].sum() + 2)
    monotone = isotonic_regression(gamma, weights=size)
    first = monotone.blocks[:-1]
    centre = np.add.reduceat(size * value, first) / np.add.reduceat(size, first)
    x, y = np.clip(centre, value[first], value[monotone.blocks[1:] - 1]), monotone.x[first]
    keep = np.unique(np.linspace(0, len(x) - 1, min(POINTS, len(x))).round().astype(int))
    return torch.from_numpy(x[keep]), torch.from_numpy(y[keep])
