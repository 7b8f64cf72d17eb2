"""Targets that never change: one-hot, and label smoothing (Szegedy 2016; RC §3, AR Eq. 1) with one ε for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.soft_labels import soft_labels
from calibrant.targets.checks import check_classes, check_number
from calibrant.types import Predictions


@dataclass(frozen=True)
class Smoothing:
    """Label smoothing, (1 − ε)·onehot + ε/K; ε = 0 is one-hot."""

    classes: int
    epsilon: float = 0.05

    def __post_init__(self) -> None:
        check_classes(self.classes)
        check_number("epsilon", self.epsilon, 1)

    def __call__(self, labels: Tensor, index: Tensor | None = None) -> Tensor:
        return soft_labels(labels, self.classes, self.epsilon)

    def observe(self, epoch: int, validation: Predictions) -> None:
        """Fixed targets learn nothing."""

    def wants(self, epoch: int) -> bool:
        return False

    def refresh(self, levels: Any) -> None:
        raise InputError(f"{type(self).__name__} has no levels to refresh; ar_adals has")


@dataclass(frozen=True)
class OneHot:
    """All mass on the label."""

    classes: int

    def __post_init__(self) -> None:
        check_classes(self.classes)

    def __call__(self, labels: Tensor, index: Tensor | None = None) -> Tensor:
        return soft_labels(labels, self.classes, 0.0)

    def observe(self, epoch: int, validation: Predictions) -> None:
        """Fixed targets learn nothing."""

    def wants(self, epoch: int) -> bool:
        return False

    def refresh(self, levels: Any) -> None:
        raise InputError(f"{type(self).__name__} has no levels to refresh; ar_adals has")
