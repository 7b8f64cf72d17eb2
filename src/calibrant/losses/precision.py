"""What losses and penalties share: precision inside, and the weighted mean over items."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.protocols import Batch


def wide(logits: Tensor) -> Tensor:
    """Float32 at least: in bf16 (8 bits) 1 − p and log p lose every digit that a loss lives on."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean over items, weighted if the batch carries weights."""
    if weight is None:
        return values.mean()
    weight = weight.to(values.dtype)
    return (values * weight).sum() / weight.sum().clamp_min(torch.finfo(values.dtype).tiny)  # tiny: all weights 0


def weight_of(batch: Batch | Tensor | None) -> Tensor | None:
    """The weights of the items, where a batch carries them; labels alone do not."""
    return batch.weight if isinstance(batch, Batch) else None
