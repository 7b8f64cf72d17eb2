"""The protocols that families implement. A new method is one class that fits one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from calibrant.types import Predictions


@dataclass(frozen=True)
class Batch:
    """What a penalty may read besides the logits. One that reads only the labels also takes them instead of this."""

    q: Tensor  # soft targets [N, K]
    labels: Tensor | None  # [N]; None after a transform that mixes items
    index: Tensor  # the positions of these items in the training set
    weight: Tensor | None = None


@runtime_checkable
class TargetPolicy(Protocol):
    """(labels[N], index[N]) -> q[N, K], soft targets. Adaptive policies observe validation predictions every epoch."""

    def __call__(self, labels: Tensor, index: Tensor) -> Tensor: ...
    def observe(self, epoch: int, validation: Predictions) -> None: ...
    def wants(self, epoch: int) -> bool: ...
    def refresh(self, levels: Any) -> None: ...


@runtime_checkable
class Criterion(Protocol):
    """(logits[N, K], labels[N] or q[N, K]) -> scalar; with `reduction="none"`, which the loop asks for, loss[N]."""

    def __call__(self, logits: Tensor, target: Tensor) -> Tensor: ...


@runtime_checkable
class Penalty(Protocol):
    """(logits[N, K], Batch) -> scalar."""

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor: ...


@runtime_checkable
class Stateful(Protocol):
    """State that must be in the checkpoint: tensors and plain JSON values only."""

    def state(self) -> Mapping[str, Any]: ...
    def load(self, state: Mapping[str, Any]) -> None: ...


@runtime_checkable
class BatchTransform(Protocol):
    """(model, x, q, index, rng) -> x, q."""

    def __call__(
        self, model: torch.nn.Module, x: Tensor, q: Tensor, index: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]: ...


@runtime_checkable
class Predictor(Protocol):
    """x -> pooled logits[N, K]; `members` gives logits[M, N, K]. A single model has M = 1."""

    def __call__(self, x: Tensor) -> Tensor: ...
    def members(self, x: Tensor) -> Tensor: ...


@runtime_checkable
class LogitMap(Protocol):
    """A fitted, frozen map from logits to logits, which can be saved without pickle."""

    def __call__(self, logits: Tensor) -> Tensor: ...


@runtime_checkable
class Calibrator(Protocol):
    """`fit` RETURNS the fitted map: there is no unfitted state."""

    def fit(self, predictions: Predictions) -> LogitMap: ...


@runtime_checkable
class Shift(Protocol):
    """(x, severity, rng) -> x'."""

    def __call__(self, x: Tensor, severity: int, rng: torch.Generator) -> Tensor: ...


@runtime_checkable
class Attack(Protocol):
    """(predictor, x) -> x'; needs no label."""

    def __call__(self, predictor: Any, x: Tensor) -> Tensor: ...
