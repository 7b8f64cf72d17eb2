"""Targets that never change: one-hot, and label smoothing (Szegedy 2016; RC §3, AR Eq. 1) with one ε for all.

The checks of classes and numbers are used by all target policies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.soft_labels import soft_labels
from calibrant.types import Predictions


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


@dataclass(frozen=True)
class Smoothing(OneHot):
    """Label smoothing, (1 − ε)·onehot + ε/K; ε = 0 is one-hot."""

    epsilon: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("epsilon", self.epsilon, 1)

    def __call__(self, labels: Tensor, index: Tensor | None = None) -> Tensor:
        return soft_labels(labels, self.classes, self.epsilon)


def check_classes(classes: int) -> None:
    if not isinstance(classes, Integral) or classes < 2:
        raise InputError(f"targets need at least two classes, got classes={classes!r}")


def check_number(name: str, value: float, most: float = math.inf) -> None:
    """Refuse anything but a finite number in 0 … most."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= most or math.isinf(value):
        allowed = "a number, 0 or more" if math.isinf(most) else f"a number in [0, {most:g}]"
        raise InputError(f"{name} must be {allowed}, got {value!r}")
