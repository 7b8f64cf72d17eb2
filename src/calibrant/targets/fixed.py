"""Targets that never change: one-hot, and label smoothing (Szegedy 2016; RC §3, AR Eq. 1) with one ε for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional import settings
from calibrant.functional.soft_labels import soft_labels
from calibrant.types import Predictions


@dataclass(frozen=True)
class OneHot:
    """All mass on the label."""

    classes: int

    def __post_init__(self) -> None:
        settings.convert(self)
        settings.at_least(self, classes=2)

    def __call__(self, labels: Tensor, index: Tensor | None = None) -> Tensor:
        return soft_labels(labels, self.classes, 0.0)

    def observe(self, epoch: int, validation: Predictions) -> None:
        """Fixed targets learn nothing."""

    def wants(self, epoch: int) -> bool:
        return False

    def refresh(self, levels: Any) -> None:
        raise InputError(f"{type(self).__name__} has no levels to refresh; ar_adals has")


@dataclass(frozen=True)
class Smoothing(OneHot):
    """Label smoothing, (1 − ε)·onehot + ε/K; ε = 0 is one-hot."""

    epsilon: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.epsilon <= 1:
            raise InputError(f"epsilon must be a number in [0, 1], got {self.epsilon!r}")

    def __call__(self, labels: Tensor, index: Tensor | None = None) -> Tensor:
        return soft_labels(labels, self.classes, self.epsilon)
