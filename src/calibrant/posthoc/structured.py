"""Structured vector and matrix scaling (Berta, Holzmüller, Jordan and Bach 2025, arXiv 2511.03685).

    vector:  softmax((1 + v) ∘ x + b),          matrix:  softmax((I + diag v + M) x + b),  M off the diagonal,

where x is the tempered log p of `shrinkage.py`. Ridges that grow with the number of parameters shrink the map towards
x:

    mean NLL + λ [ K/N (|b|² + |v|²) + K(K − 1)/N |M|² ]

The problem is convex, and its centre is temperature scaling: with few items per class the fit stays there. The default
λ = 1 is that of the paper. `penalty=None` chooses λ by cross-validation (`shrinkage.py`), which helps if a network
makes the same mistake on many items. The solver (`functional/multinomial.py`) is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.functional.designs import Design, Diagonal, Full
from calibrant.functional.multinomial import effective_degrees, minimise
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap, still_impossible
from calibrant.posthoc.shrinkage import FOLDS, anchor, cross_validated, possible_items, tempered, uniform_share
from calibrant.types import Predictions


@dataclass(frozen=True, eq=False)
class TemperedMap(FittedMap):
    """Abstract: a linear map of the tempered x."""

    temperature: Tensor
    bias: Tensor
    epsilon: float
    effective: float | None = field(default=None, kw_only=True)  # number of parameters that the ridge leaves free
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int | None:
        return len(self.bias)

    @property
    def degrees(self) -> int:
        return super().degrees if self.effective is None else round(self.effective) + 1  # 1 for the temperature

    def tempered(self, logits: Tensor) -> Tensor:
        return tempered(logits, self.temperature, self.epsilon)


@dataclass(frozen=True, eq=False)
class StructuredVectorMap(TemperedMap):
    """scale ∘ x + bias on the tempered x."""

    scale: Tensor
    method: ClassVar[str] = "structured_vector"

    def transform(self, logits: Tensor) -> Tensor:
        return still_impossible(self.tempered(logits) * self.scale + self.bias, logits)


@dataclass(frozen=True, eq=False)
class StructuredMatrixMap(TemperedMap):
    """weight x + bias on the tempered x."""

    weight: Tensor
    method: ClassVar[str] = "structured_matrix"

    def transform(self, logits: Tensor) -> Tensor:
        return still_impossible(self.tempered(logits) @ self.weight.T + self.bias, logits)


@dataclass(frozen=True)
class Problem:
    """What is fitted to the tempered x [N, K]: the design, the ridge at strength λ, and the centre."""

    design: Callable[[Tensor], Design]
    ridge: Callable[[float], Tensor]
    centre: Tensor


@dataclass(frozen=True)
class StructuredVector(Calibrator):
    """Structured vector scaling (Berta 2025).

    `penalty` is λ. None lets cross-validation choose it.
    """

    penalty: float | None = 1.0
    name: ClassVar[str] = "structured_vector"
    map: ClassVar[type[FittedMap]] = StructuredVectorMap
    cost: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "must be positive; without a penalty use vector or matrix"
        self.require(self.penalty is None or self.penalty > 0, "penalty", rule)

    def solve(self, p: Predictions) -> FittedMap:
        z, labels = possible_items(p)
        n, k = z.shape
        if self.penalty is None:
            self.need(n, FOLDS, "one for each fold of its cross-validation; or give penalty")
        temperature, epsilon = anchor(z, labels), uniform_share(n)
        x = tempered(z, temperature, epsilon)
        problem = self.problem(n, k)
        if self.penalty is None:
            found, penalty, path = cross_validated(x, labels, problem.design, problem.ridge, problem.centre)
        else:
            ridge = problem.ridge(self.penalty)
            found, penalty, path = minimise(problem.design(x), labels, ridge, problem.centre), self.penalty, {}
        degrees = effective_degrees(problem.design(x), found.theta, problem.ridge(penalty))
        record = certified({"penalty": penalty, "degrees": degrees, **path, **found.certificate()})
        return self.map_of(found.theta, k, temperature=temperature, epsilon=epsilon, effective=degrees, record=record)

    def problem(self, n: int, k: int) -> Problem:
        centre = torch.cat([torch.ones(k), torch.zeros(k)]).double()
        return Problem(Diagonal, lambda m: torch.full((2 * k,), m * k / n, dtype=torch.float64), centre)

    def map_of(self, theta: Tensor, k: int, **options: Any) -> FittedMap:
        return StructuredVectorMap(scale=theta[:k].clone(), bias=theta[k:].clone(), **options)


@dataclass(frozen=True)
class StructuredMatrix(StructuredVector):
    """Structured matrix scaling (Berta 2025).

    `penalty` is λ. None lets cross-validation choose it.
    """

    name: ClassVar[str] = "structured_matrix"
    map: ClassVar[type[FittedMap]] = StructuredMatrixMap
    cost: ClassVar[int] = 3
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"penalty": None})

    def problem(self, n: int, k: int) -> Problem:
        def ridge(m: float) -> Tensor:
            return matrix_ridge(k, off=m * k * (k - 1) / n, diagonal=m * k / n, bias=m * k / n)

        return Problem(lambda x: Full(x, k), ridge, torch.cat([torch.eye(k).flatten(), torch.zeros(k)]).double())

    def map_of(self, theta: Tensor, k: int, **options: Any) -> FittedMap:
        return StructuredMatrixMap(weight=theta[:-k].view(k, k).clone(), bias=theta[-k:].clone(), **options)


def matrix_ridge(k: int, *, off: float, diagonal: float, bias: float) -> Tensor:
    """The ridge of (W row by row, b)."""
    weight = torch.full((k, k), off, dtype=torch.float64)
    weight.diagonal().fill_(diagonal)
    return torch.cat([weight.flatten(), torch.full((k,), bias, dtype=torch.float64)])
