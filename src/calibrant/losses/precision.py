"""Precision and means of losses and penalties: at least float32, weighted by item."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.protocols import Batch


def wide(logits: Tensor) -> Tensor:
    """At least float32: in bf16 (8 bits), 1 − p and log p would lose the digits that matter."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean over items, weighted if the batch carries weights."""
    if weight is None:
        return values.mean()
    weight = weight.to(values.dtype)
    return (values * weight).sum() / weight.sum().clamp_min(torch.finfo(values.dtype).tiny)  # tiny: all weights 0


def weight_of(batch: Batch | Tensor | None) -> Tensor | None:
    """The weights of the items, if the batch has them; labels alone do not."""
    return batch.weight if isinstance(batch, Batch) else None
