"""What losses and penalties are given, and their precision and means: at least float32, weighted by item."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.tensors import as_tensor
from calibrant.protocols import Batch


def on_device_of(logits: Tensor, values: Any, name: str) -> Tensor:
    """Labels or targets as a tensor on the device of the logits; they may be an array or a list."""
    return values if isinstance(values, Tensor) else as_tensor(values, name).to(logits.device)


def at_least_float32(logits: Tensor) -> Tensor:
    """At least float32: in bf16 (8 bits), 1 − p and log p would lose the digits that matter."""
    if not isinstance(logits, Tensor):
        raise InputError(f"logits are a {type(logits).__name__}, which has no gradient; pass the network's tensor")
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean over items, weighted if the batch carries weights."""
    if weight is None:
        return values.mean()
    weight = weight.to(values.dtype)
    return (values * weight).sum() / weight.sum().clamp_min(torch.finfo(values.dtype).tiny)  # tiny: all weights 0


def item_weights(batch: Batch | Tensor | None) -> Tensor | None:
    """The weights of the items, if the batch has them; labels alone do not."""
    return batch.weight if isinstance(batch, Batch) else None
