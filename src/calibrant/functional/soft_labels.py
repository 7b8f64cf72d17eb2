"""Labels to soft labels, for losses and target policies: AR Eq. 1, q = (1 − ε)·onehot + ε/K."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.errors import InputError


def soft_labels(labels: Tensor, classes: int, epsilon: Tensor | float) -> Tensor:
    """[N] → [N, K] float32. A negative label (a pixel to ignore) gets a row of zeros, so its loss is 0.

    A label that is no class is an error. On an accelerator that check would have to wait, and a compiled graph would
    break. There the result is NaN (`encoded`), and a training checks its labels before it begins.
    """
    checked = labels.device.type == "cpu" and not torch.compiler.is_compiling()
    if checked and labels.numel() and (highest := int(labels.max())) >= classes:
        raise InputError(f"label {highest} with classes={classes}: labels must be 0 … {classes - 1}")
    return encoded(labels, classes, epsilon)


def encoded(labels: Tensor, classes: int, epsilon: Tensor | float) -> Tensor:
    """The same without a check. A label that is no class gets a row of NaN, and so a loss of NaN, at which the training
    loop stops and names its items."""
    hot = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
    eps = epsilon.unsqueeze(-1) if isinstance(epsilon, Tensor) else epsilon
    q = hot.float() * (1 - eps) + eps / classes
    counts = torch.where(labels < classes, (labels >= 0).float(), torch.nan)
    return q * counts.unsqueeze(-1)
