"""Structured vector and matrix scaling (Berta, Holzmüller, Jordan and Bach 2025, arXiv 2511.03685).

    vector:  softmax((1 + v) ∘ x + b),          matrix:  softmax((I + diag v + M) x + b),  M off the diagonal,

on the tempered x of `shrinkage.py`, shrunk towards x by ridges that grow with what they can spoil:

    mean NLL + λ [ K/N (|b|² + |v|²) + K(K − 1)/N |M|² ]

Convex, and at the centre already temperature scaling: with few items per class the fit stays there. λ = 1 is the
paper's, and the default; `penalty=None` chooses λ by cross-validation (`shrinkage.py`), which pays where a network
errs alike on many items. The solver (`functional/multinomial.py`) is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.functional.designs import Design, Diagonal, Full
from calibrant.functional.multinomial import effective_degrees, minimise
from calibrant.posthoc.calibrator import Calibrator, at_least, certified
from calibrant.posthoc.map import FittedMap, still_impossible
from calibrant.posthoc.shrinkage import FOLDS, anchor, cross_validated, tempered, uniform_share
from calibrant.types import Predictions

POSITIVE = "must be positive; without a penalty use vector or matrix"


@dataclass(frozen=True, eq=False)
class StructuredVectorMap(FittedMap):
    """scale ∘ x + bias on the tempered x."""

    temperature: Tensor
    scale: Tensor
    bias: Tensor
    epsilon: float
    effective: float | None = None  # parameters that the ridge leaves free
    method: ClassVar[str] = "structured_vector"
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int | None:
        return len(self.bias)

    @property
    def degrees(self) -> int:
        return super().degrees if self.effective is None else round(self.effective) + 1  # and the temperature

    def transform(self, logits: Tensor) -> Tensor:
        x = tempered(logits, self.temperature, self.epsilon)
        return still_impossible(x * self.scale + self.bias, logits)


@dataclass(frozen=True, eq=False)
class StructuredMatrixMap(FittedMap):
    """weight x + bias on the tempered x."""

    temperature: Tensor
    weight: Tensor
    bias: Tensor
    epsilon: float
    effective: float | None = None  # parameters that the ridge leaves free
    method: ClassVar[str] = "structured_matrix"
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int | None:
        return len(self.bias)

    @property
    def degrees(self) -> int:
        return super().degrees if self.effective is None else round(self.effective) + 1  # and the temperature

    def transform(self, logits: Tensor) -> Tensor:
        x = tempered(logits, self.temperature, self.epsilon)
        return still_impossible(x @ self.weight.T + self.bias, logits)


@dataclass(frozen=True)
class StructuredVector(Calibrator):
    """Structured vector scaling (Berta 2025).

    `penalty` is λ; None: chosen by cross-validation.
    """

    penalty: float | None = 1.0
    name: ClassVar[str] = "structured_vector"
    map: ClassVar[type[FittedMap]] = StructuredVectorMap
    cost: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.penalty is None or self.penalty > 0, "penalty", POSITIVE)

    def solve(self, p: Predictions) -> FittedMap:
        x, temperature, epsilon = _start(p, self)
        n, k = x.shape
        centre = torch.cat([torch.ones(k), torch.zeros(k)]).double()

        def ridge(m: float) -> Tensor:
            return torch.full((2 * k,), m * k / n, dtype=torch.float64)

        theta, certificate = _solved(self.penalty, x, p.labels.to(x.device), Diagonal, ridge, centre)
        return StructuredVectorMap(
            temperature,
            theta[:k].clone(),
            theta[k:].clone(),
            epsilon,
            certificate["degrees"],
            record=certified(certificate),
        )


@dataclass(frozen=True)
class StructuredMatrix(Calibrator):
    """Structured matrix scaling (Berta 2025).

    `penalty` is λ; None: chosen by cross-validation.
    """

    penalty: float | None = 1.0
    name: ClassVar[str] = "structured_matrix"
    map: ClassVar[type[FittedMap]] = StructuredMatrixMap
    cost: ClassVar[int] = 3
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"penalty": None})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.penalty is None or self.penalty > 0, "penalty", POSITIVE)

    def solve(self, p: Predictions) -> FittedMap:
        x, temperature, epsilon = _start(p, self)
        n, k = x.shape
        centre = torch.cat([torch.eye(k).flatten(), torch.zeros(k)]).double()

        def ridge(m: float) -> Tensor:
            return matrix_ridge(k, off=m * k * (k - 1) / n, diagonal=m * k / n, bias=m * k / n)

        theta, certificate = _solved(self.penalty, x, p.labels.to(x.device), lambda part: Full(part, k), ridge, centre)
        weight, bias = theta[:-k].view(k, k).clone(), theta[-k:].clone()
        return StructuredMatrixMap(
            temperature, weight, bias, epsilon, certificate["degrees"], record=certified(certificate)
        )


def matrix_ridge(k: int, *, off: float, diagonal: float, bias: float) -> Tensor:
    """The ridge of (W row by row, b)."""
    weight = torch.full((k, k), off, dtype=torch.float64)
    weight.diagonal().fill_(diagonal)
    return torch.cat([weight.flatten(), torch.full((k,), bias, dtype=torch.float64)])


def _start(p: Predictions, settings: StructuredVector | StructuredMatrix) -> tuple[Tensor, Tensor, float]:
    assert p.logits is not None
    if settings.penalty is None:
        at_least(p, FOLDS, "one for each fold of its cross-validation; or give penalty", settings.name)
    z = p.logits.double()
    temperature = anchor(z, p.labels)
    epsilon = uniform_share(p.n)
    return tempered(z, temperature, epsilon), temperature, epsilon


def _solved(
    penalty: float | None,
    x: Tensor,
    labels: Tensor,
    design: Callable[[Tensor], Design],
    ridge: Callable[[float], Tensor],
    centre: Tensor,
) -> tuple[Tensor, dict[str, Any]]:
    if penalty is None:
        found, chosen, path = cross_validated(x, labels, design, ridge, centre)
    else:
        found, chosen, path = minimise(design(x), labels, ridge(penalty), centre), penalty, {}
    degrees = effective_degrees(design(x), found.theta, ridge(chosen))
    return found.theta, {"penalty": chosen, "degrees": degrees, **path, **found.certificate()}
