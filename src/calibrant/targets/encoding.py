"""Labels to soft labels, the part all policies share: AR Eq. 1, q = (1 − ε)·onehot + ε/K."""

from __future__ import annotations

import math
from numbers import Integral, Real

import torch
from torch import Tensor

from calibrant.errors import InputError


def soft_labels(labels: Tensor, classes: int, epsilon: Tensor | float) -> Tensor:
    """[N] → [N, K] float32. A negative label (a pixel to ignore) gets a row of zeros: it costs nothing anywhere.

    A label of no class is an error. An accelerator would have to wait for that look: there `encoded` alone says so, and
    a training looks at its labels before it begins (`training.compatibility`).
    """
    if labels.device.type == "cpu" and labels.numel() and (highest := int(labels.max())) >= classes:
        raise InputError(f"label {highest} with classes={classes}: labels must be 0 … {classes - 1}")
    return encoded(labels, classes, epsilon)


def encoded(labels: Tensor, classes: int, epsilon: Tensor | float) -> Tensor:
    """The same without a look at the values: a label of no class gets a row that is not a number, so that the loss is
    none either and the loop stops, naming its items."""
    hot = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
    eps = epsilon.unsqueeze(-1) if isinstance(epsilon, Tensor) else epsilon
    q = hot.float() * (1 - eps) + eps / classes
    counts = torch.where(labels < classes, (labels >= 0).float(), torch.nan)
    return q * counts.unsqueeze(-1)


def check_classes(classes: int) -> None:
    if not isinstance(classes, Integral) or classes < 2:
        raise InputError(f"targets need at least two classes, got classes={classes!r}")


def check_number(name: str, value: float, most: float = math.inf) -> None:
    """Refuse what is no number of 0 … most, or not finite."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= most or math.isinf(value):
        allowed = "a number, 0 or more" if math.isinf(most) else f"a number in [0, {most:g}]"
        raise InputError(f"{name} must be {allowed}, got {value!r}")
