"""What every criterion and penalty shares: precision inside, and how classes and items are weighted."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from calibrant.errors import InputError


def wide(logits: Tensor) -> Tensor:
    """Float32 at least: in bf16 (8 bits) 1 − p and log p lose every digit that a loss lives on."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def weighted_sum(q: Tensor, per_class: Tensor, class_weights: tuple[float, ...] | None) -> Tensor:
    """Σ_k q_k · w_k · ℓ_k over the last axis; a class with q_k = 0 adds nothing, even where ℓ_k = ∞."""
    if q.shape != per_class.shape:
        raise InputError(f"targets {tuple(q.shape)} and logits {tuple(per_class.shape)} must have one shape [N, K]")
    if class_weights is not None:
        if len(class_weights) != q.shape[-1]:
            raise InputError(f"{len(class_weights)} class weights for {q.shape[-1]} classes; give one a class")
        q = q * _tensor(tuple(class_weights), per_class.dtype, per_class.device)
    zero = per_class.new_zeros(())
    return torch.where(q != 0, q.to(per_class.dtype) * per_class, zero).sum(-1)


def mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean over items, weighted if the batch carries weights."""
    if weight is None:
        return values.mean()
    return (values * weight).sum() / weight.sum()


@lru_cache(maxsize=32)
def _tensor(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # Kept: copying a list to the GPU at every step would wait for the device.
    return torch.tensor(values, dtype=dtype, device=device)
