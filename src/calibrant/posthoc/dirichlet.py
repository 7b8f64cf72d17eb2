"""Dirichlet calibration and matrix scaling with ODIR (Kull et al. 2019, §4; Guo et al. 2017 for the matrix).

    dirichlet:  softmax(W ln p + b),        matrix:  softmax(W z + b), z the logits minus their mean

    mean NLL + λ/(K(K − 1)) Σ_{i≠j} w_ij² + μ/K Σ_j b_j²             (off-diagonal and intercept regularisation)

As in the paper, cross-validation inside the calibration set chooses λ and μ; here along one path (`shrinkage.py`),
(λ, μ) = m · (λ₁, μ₁) with λ₁ = K²(K − 1)²/N and μ₁ = K²/N.

Differs from the papers: the start is I/T at the exact temperature, and a ridge of 1/N (worth about one item) pulls the
diagonal towards it. Without this ridge, a class that is separable or absent has no finite optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.designs import Full
from calibrant.functional.multinomial import minimise
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap, still_impossible
from calibrant.posthoc.shrinkage import FOLDS, anchor, cross_validated, possible_items
from calibrant.posthoc.structured import matrix_ridge
from calibrant.types import Predictions

DEEPEST = -1e4
"""Log-probabilities, and logits minus the largest, are clipped here."""


@dataclass(frozen=True, eq=False)
class DirichletMap(FittedMap):
    """weight · ln p + bias."""

    weight: Tensor
    bias: Tensor
    method: ClassVar[str] = "dirichlet"
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int | None:
        return len(self.bias)

    @staticmethod
    def features(logits: Tensor) -> Tensor:
        return torch.log_softmax(logits, -1).clamp_min(DEEPEST)

    def transform(self, logits: Tensor) -> Tensor:
        return still_impossible(self.features(logits) @ self.weight.T + self.bias, logits)


@dataclass(frozen=True, eq=False)
class MatrixMap(DirichletMap):
    """weight · z + bias. Subtracting the mean of the logits removes the constant up to which they are defined."""

    method: ClassVar[str] = "matrix"

    @staticmethod
    def features(logits: Tensor) -> Tensor:
        z = (logits - logits.amax(-1, keepdim=True)).clamp_min(DEEPEST)
        return z - z.mean(-1, keepdim=True)


@dataclass(frozen=True)
class Dirichlet(Calibrator):
    """Dirichlet calibration with ODIR (Kull 2019).

    `lambda_` and `mu` are as in the paper. By default cross-validation chooses them.
    """

    lambda_: float | None = None
    mu: float | None = None
    name: ClassVar[str] = "dirichlet"
    map: ClassVar[type[FittedMap]] = DirichletMap
    cost: ClassVar[int] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.lambda_ is None) != (self.mu is None):
            raise InputError("give both lambda_ and mu, or neither (cross-validation then chooses them)")
        self.require(self.lambda_ is None or self.lambda_ > 0, "lambda_", "must be positive")
        self.require(self.mu is None or self.mu > 0, "mu", "must be positive")

    def solve(self, p: Predictions) -> FittedMap:
        assert issubclass(self.map, DirichletMap)
        z, labels = possible_items(p)
        x, (n, k) = self.map.features(z), z.shape
        centre = torch.cat([torch.eye(k).double().flatten() / anchor(z, labels), torch.zeros(k)])

        def strengths(m: float) -> tuple[float, float]:
            return m * (k * (k - 1)) ** 2 / n, m * k * k / n

        def ridge(lambda_: float, mu: float) -> Tensor:
            return matrix_ridge(k, off=lambda_ / (k * (k - 1)), diagonal=1 / n, bias=mu / k)

        if self.lambda_ is None or self.mu is None:
            self.need(n, FOLDS, "one for each fold of its cross-validation; or give lambda_ and mu")
            found, m, path = cross_validated(x, labels, partial(Full, k=k), lambda m: ridge(*strengths(m)), centre)
            lambda_, mu = strengths(m)
        else:
            lambda_, mu, path = self.lambda_, self.mu, {}
            found = minimise(Full(x, k), labels, ridge(lambda_, mu), centre)
        record = certified({"lambda": lambda_, "mu": mu, **path, **found.certificate()})
        return self.map(found.theta[:-k].view(k, k).clone(), found.theta[-k:].clone(), record=record)


@dataclass(frozen=True)
class Matrix(Dirichlet):
    """Matrix scaling with ODIR (Guo 2017; Kull 2019)."""

    name: ClassVar[str] = "matrix"
    map: ClassVar[type[FittedMap]] = MatrixMap
