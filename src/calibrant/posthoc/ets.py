"""Ensemble temperature scaling: q = w₁ softmax(z/T) + w₂ softmax(z) + w₃/K, w on the simplex (Zhang et al. 2020, §3.2).

T is the exact temperature. Only the probability of the label under each component, A[N, 3], enters the likelihood, and
ℓ(w) = −mean log(A w) is convex in w. The certificate is a bound: ℓ(w) − min ℓ ≤ max_j mean(A_j / A w) − 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.functional.probabilities import FLOOR
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap, still_impossible
from calibrant.posthoc.shrinkage import anchor, possible_items
from calibrant.posthoc.step_functions import Floats
from calibrant.types import Predictions

LEAST = 1e-6
"""The smallest weight of the tempered part. It keeps the order of the classes, and so the label, even at w₃ = 1."""
TOLERANCE = 1e-8
"""The gap at which the search for the weights ends; after `ROUNDS` rounds it ends in any case."""
ROUNDS = 50
STEPS = 5
"""Steps of expectation–maximisation in a round."""


@dataclass(frozen=True, eq=False)
class EtsMap(FittedMap):
    """The logarithm of the mixture of tempered, given and uniform probabilities."""

    temperature: Tensor
    weights: Tensor
    method: ClassVar[str] = "ets"
    keeps_label: ClassVar[bool] = True

    def transform(self, logits: Tensor) -> Tensor:
        log_w = torch.log(self.weights)
        tempered = torch.log_softmax(logits / self.temperature, -1) + log_w[0]
        given = torch.log_softmax(logits, -1) + log_w[1]
        mixed = torch.logaddexp(torch.logaddexp(tempered, given), log_w[2] - math.log(logits.shape[-1]))
        return still_impossible(mixed, logits)  # the uniform part gives every class some probability

    def summary(self) -> dict[str, Any]:
        return {"temperature": float(self.temperature), "weights": self.weights.tolist()}


@dataclass(frozen=True)
class Ets(Calibrator):
    """Ensemble temperature scaling (Zhang 2020, Mix-n-Match)."""

    name: ClassVar[str] = "ets"
    map: ClassVar[type[FittedMap]] = EtsMap
    cost: ClassVar[int] = 1

    def solve(self, p: Predictions) -> FittedMap:
        z, labels = possible_items(p)
        T = anchor(z, labels)
        parts = [torch.log_softmax(s, 1).gather(1, labels[:, None])[:, 0].exp() for s in (z / T, z)]
        components = torch.stack([*parts, torch.full_like(parts[0], 1 / z.shape[1])], 1).cpu()
        w, certificate = simplex_mixture(components)
        w = (1 - LEAST) * w + LEAST * torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
        return EtsMap(T, w, record=certified(certificate))


def simplex_mixture(components: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """w on the simplex that minimises −mean log(A w), and its certificate.

    Steps of expectation–maximisation never fail, but end slowly. SLSQP ends quickly, but may stop early where some
    item has almost no probability under two of the components. So they alternate.
    """
    from scipy.optimize import minimize

    a = components.numpy()
    j = a.shape[1]

    def loss(w: Floats) -> tuple[float, Floats]:
        mixed = np.maximum(a @ w, FLOOR)
        return -float(np.log(mixed).mean()), -(a / mixed[:, None]).mean(0)

    sums_to_one = {"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like}
    settings: dict[str, Any] = {"bounds": [(0, 1)] * j, "constraints": sums_to_one, "options": {"ftol": 1e-15}}
    w, iterations = np.full(j, 1 / j), 0
    for _ in range(ROUNDS):
        for _ in range(STEPS):
            w = on_simplex(-w * loss(w)[1])
        found = minimize(loss, w, jac=True, method="SLSQP", **settings)
        iterations += STEPS + int(found.nit)
        w = min(w, on_simplex(found.x), key=lambda v: loss(v)[0])
        value, gradient = loss(w)
        gap = float(-gradient.min()) - 1
        if gap <= TOLERANCE:
            break
    return torch.from_numpy(w), {"objective": value, "gap": gap, "iterations": iterations}


def on_simplex(w: Floats) -> Floats:
    w = np.clip(w, 0, None)
    return np.asarray(w / w.sum())
