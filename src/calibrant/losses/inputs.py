"""The inputs of losses and penalties: their device, their precision, and the weights of items."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.tensors import as_tensor
from calibrant.protocols import Batch


def on_device_of(logits: Tensor, values: Any, name: str) -> Tensor:
    """Return labels or targets as a tensor. An array or a list is put on the device of the logits."""
    return values if isinstance(values, Tensor) else as_tensor(values, name).to(logits.device)


def at_least_float32(logits: Tensor) -> Tensor:
    """Return the logits in float32 or wider. In bf16 (8 bits), 1 − p and log p would lose the digits that matter."""
    if not isinstance(logits, Tensor):
        raise InputError(f"logits are a {type(logits).__name__}, which has no gradient; pass the network's tensor")
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def weighted_mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return the mean over items, weighted if there are weights."""
    if weight is None:
        return values.mean()
    weight = weight.to(values.dtype)
    return (values * weight).sum() / weight.sum().clamp_min(torch.finfo(values.dtype).tiny)  # tiny: all weights 0


def item_weights(batch: Batch | Tensor | None) -> Tensor | None:
    """Return the weights of the items, or None if there are none, as with labels alone."""
    return batch.weight if isinstance(batch, Batch) else None
