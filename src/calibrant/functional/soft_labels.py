"""Labels → soft labels q = (1 − ε)·onehot + ε/K (AR Eq. 1), for losses and target policies."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.errors import InputError


def soft_labels(labels: Tensor, classes: int, epsilon: Tensor | float) -> Tensor:
    """Labels [N] → soft labels [N, K] in float32. A negative label (a pixel to ignore) gets a row of zeros and no loss.

    A label that is not a class is an error on the CPU. On an accelerator the check would force a wait and break
    compiled graphs, so there the row is NaN (see `encoded`), and a training checks its labels before it begins.
    """
    checked = labels.device.type == "cpu" and not torch.compiler.is_compiling()
    if checked and labels.numel() and (highest := int(labels.max())) >= classes:
        raise InputError(f"label {highest} with classes={classes}: labels must be 0 … {classes - 1}")
    return encoded(labels, classes, epsilon)


def encoded(labels: Tensor, classes: int, epsilon: Tensor | float) -> Tensor:
    """The soft labels without a check. A label that is not a class gets a row of NaN and so a NaN loss, at which the
    training loop stops and names the items."""
    hot = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
    eps = epsilon.unsqueeze(-1) if isinstance(epsilon, Tensor) else epsilon
    q = hot.float() * (1 - eps) + eps / classes
    counts = torch.where(labels < classes, (labels >= 0).float(), torch.nan)
    return q * counts.unsqueeze(-1)
