"""Labels to soft labels, the part all policies share: AR Eq. 1, q = (1 − ε)·onehot + ε/K."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.errors import InputError


def soft_labels(labels: Tensor, classes: int, epsilon: Tensor | float) -> Tensor:
    """[N] → [N, K] float32. A negative label (a pixel to ignore) gets a row of zeros: it costs nothing anywhere."""
    hot = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
    eps = epsilon.unsqueeze(-1) if isinstance(epsilon, Tensor) else epsilon
    q = hot.float() * (1 - eps) + eps / classes
    return q * (labels >= 0).unsqueeze(-1)


def check_classes(classes: int) -> None:
    if classes < 2:
        raise InputError(f"targets need at least two classes, got classes={classes}")
