"""Ensemble temperature scaling: q = w₁ softmax(z/T) + w₂ softmax(z) + w₃/K, w on the simplex (Zhang et al. 2020, §3.2).

T is the exact temperature. Only the label's probability under each component, A[N, 3], enters the likelihood, and
−mean log(A w) is convex in w. It is solved by Newton's method on the simplex; each step minimises the quadratic model
over all seven faces exactly. The certificate is a bound: ℓ(w) − min ℓ ≤ max_j mean(A_j / A w) − 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap, still_impossible
from calibrant.posthoc.shrinkage import anchor
from calibrant.types import Predictions

LEAST = 1e-6
"""Least weight of the tempered part, so that the order of the classes, and the label, survive w₃ = 1."""


@dataclass(frozen=True, eq=False)
class EtsMap(FittedMap):
    """log of the mixture of tempered, given and uniform probabilities."""

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
        assert p.logits is not None
        z = p.logits.double()
        T = anchor(z, p.labels)
        pick = p.labels[:, None]
        possible = torch.isfinite(z.gather(1, pick))[:, 0]  # the NLL of the others is infinite, whatever the weights
        z, pick = z[possible], pick[possible]
        parts = [torch.log_softmax(s, 1).gather(1, pick)[:, 0].exp() for s in (z / T, z)]
        components = torch.stack([*parts, torch.full_like(parts[0], 1 / z.shape[1])], 1).cpu()
        w, certificate = simplex_mixture(components)
        w = (1 - LEAST) * w + LEAST * torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
        return EtsMap(T, w, record=certified(certificate))


def simplex_mixture(components: Tensor, tolerance: float = 1e-10, limit: int = 100) -> tuple[Tensor, dict[str, Any]]:
    """w on the simplex that minimises −mean log(A w), and its certificate. Some component is positive everywhere."""
    n, j = components.shape
    w = torch.full((j,), 1 / j, dtype=torch.float64)
    value = -float(torch.log(components @ w).mean())
    gap, iteration = math.inf, 0
    while True:
        ratio = components / (components @ w)[:, None]
        share = ratio.mean(0)  # −gradient
        gap = float(share.max()) - 1
        if gap <= tolerance or iteration == limit:
            break
        iteration += 1
        target = _simplex_newton(w, -share, ratio.T @ ratio / n)
        scale = 1.0
        while True:
            trial = w + scale * (target - w)
            mixed = components @ trial
            new = -float(torch.log(mixed).mean()) if bool((mixed > 0).all()) else math.inf
            if new < value or scale < 1e-12:
                break
            scale /= 2
        if not new < value:
            break
        w, value = trial, new
    return w, {"objective": value, "gap": gap, "iterations": iteration}


def _simplex_newton(w: Tensor, g: Tensor, h: Tensor) -> Tensor:
    """argmin over the simplex of g·(u − w) + ½ (u − w)ᵀ H (u − w): the best feasible stationary point of any face."""
    j = len(w)
    h = h + 1e-10 * torch.eye(j, dtype=h.dtype)  # two components may be equal, as when T = 1
    best, argbest = math.inf, w
    for size in range(1, j + 1):
        for face in combinations(range(j), size):
            f = list(face)
            kkt = torch.zeros(size + 1, size + 1, dtype=torch.float64)
            kkt[:size, :size] = h[f][:, f]
            kkt[:size, size] = kkt[size, :size] = 1.0
            rhs = torch.cat([(h @ w - g)[f], torch.ones(1, dtype=torch.float64)])
            u = torch.zeros_like(w)
            u[f] = torch.linalg.solve(kkt, rhs)[:size]
            if bool((u < -1e-12).any()):
                continue
            u = u.clamp_min(0)
            u = u / u.sum()
            d = u - w
            model = float(g @ d + d @ h @ d / 2)
            if model < best:
                best, argbest = model, u
    return argbest
