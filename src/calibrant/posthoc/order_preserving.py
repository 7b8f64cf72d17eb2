"""Intra-order-preserving calibration, the diagonal family (Rahimi et al. 2020, §4.3): f(z)_k = g(z_k), g increasing.

One increasing function for all classes keeps their full order, not only the label. Rahimi et al. make g a monotone
network. Here g is piecewise linear on the tempered log-probabilities x ≤ 0 (`shrinkage.py`), with slopes θ_j > 0
between fixed knots. So the NLL is convex in θ, and the fit is exact, deterministic and fast. θ = 1 is temperature
scaling, and a ridge λ J/N (θ − 1)² shrinks towards it. f reads log-probabilities because logits are defined only up to
a constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.functional.designs import Shared
from calibrant.functional.multinomial import minimise
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap, still_impossible
from calibrant.posthoc.shrinkage import anchor, possible_items, tempered
from calibrant.posthoc.step_functions import place
from calibrant.types import Predictions

KNOTS = (-16.0, -12.0, -9.0, -7.0, -5.5, -4.25, -3.25, -2.4, -1.7, -1.1, -0.6, -0.25)
"""The knots in log p: about one per factor e² for small probabilities, more where most of the probability lies."""
LEAST_SLOPE = 1e-3
"""The smallest slope. It is positive, so that no two classes become equal."""


@dataclass(frozen=True, eq=False)
class OrderPreservingMap(FittedMap):
    """g of the tempered log-probabilities."""

    temperature: Tensor
    knots: Tensor
    slopes: Tensor
    method: ClassVar[str] = "order_preserving"
    keeps_label: ClassVar[bool] = True

    @property
    def degrees(self) -> int:
        return len(self.slopes) + 1

    def transform(self, logits: Tensor) -> Tensor:
        x = tempered(logits, self.temperature, 0.0)
        finite = x.masked_fill(torch.isneginf(x), 0.0)
        return still_impossible(increasing(finite, self.knots, self.slopes), x)


@dataclass(frozen=True)
class OrderPreserving(Calibrator):
    """Order-preserving calibration, the diagonal family (Rahimi 2020).

    `penalty` is λ.
    """

    penalty: float = 0.1
    name: ClassVar[str] = "order_preserving"
    map: ClassVar[type[FittedMap]] = OrderPreservingMap
    cost: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.penalty > 0, "penalty", "must be positive, or segments without data have no slope")

    def solve(self, p: Predictions) -> FittedMap:
        z, labels = possible_items(p)
        temperature = anchor(z, labels)
        knots = z.new_tensor(KNOTS)
        x = tempered(z, temperature, 0.0).clamp_min(2 * KNOTS[0])
        one = knots.new_ones(len(knots) + 1)
        ridge = one * self.penalty * len(one) / len(z)
        found = minimise(Shared(x, knots), labels, ridge, one, lower=one * LEAST_SLOPE)
        return OrderPreservingMap(temperature, knots, found.theta, record=certified(found.certificate()))


def increasing(x: Tensor, knots: Tensor, slopes: Tensor) -> Tensor:
    """g(x), piecewise linear with g(first knot) = 0."""
    height = torch.cat([knots.new_zeros(1), torch.cumsum(slopes[1:-1] * torch.diff(knots), 0)])
    segment = place(x, knots)
    left = (segment - 1).clamp_min(0)
    return height[left] + slopes[segment] * (x - knots[left])
