"""Labels to soft labels, what losses and target policies share: AR Eq. 1, q = (1 − ε)·onehot + ε/K."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.errors import InputError


def soft_labels(labels: Tensor, classes: int, epsilon: Tensor | float) -> Tensor:
    """[N] → [N, K] float32. A negative label (a pixel to ignore) gets a row of zeros: it costs nothing anywhere.

    A label of no class is an error. An accelerator would have to wait for that check, and a compiled graph would break:
    there `encoded` alone says so, and a training checks its labels before it begins (`training.compatibility`).
    """
    checked = labels.device.type == "cpu" and not torch.compiler.is_compiling()
    if checked and labels.numel() and (highest := int(labels.max())) >= classes:
        raise InputError(f"label {highest} with classes={classes}: labels must be 0 … {classes - 1}")
    return encoded(labels, classes, epsilon)


def encoded(labels: Tensor, classes: int, epsilon: Tensor | float) -> Tensor:
    """The same without a check of the values: a label of no class gets a row that is not a number, so that the loss is
    none either and the loop stops, naming its items."""
    hot = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
    eps = epsilon.unsqueeze(-1) if isinstance(epsilon, Tensor) else epsilon
    q = hot.float() * (1 - eps) + eps / classes
    counts = torch.where(labels < classes, (labels >= 0).float(), torch.nan)
    return q * counts.unsqueeze(-1)
