"""What every criterion and penalty shares: precision inside, and how classes and items are weighted."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from calibrant.errors import InputError


def wide(logits: Tensor) -> Tensor:
    """Float32 at least: in bf16 (8 bits) 1 − p and log p lose every digit that a loss lives on."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def log_probabilities(logits: Tensor, q: Tensor) -> Tensor:
    """log softmax; an impossible class (logit −∞) that nobody aims at is only very improbable, so that 0 · ∞ is 0."""
    if q.shape != logits.shape:
        raise InputError(f"targets {tuple(q.shape)} and logits {tuple(logits.shape)} must have one shape [N, K]")
    log_p = torch.log_softmax(wide(logits), -1)
    return torch.where(q == 0, log_p.clamp_min(-1e30), log_p)


def weighted_sum(q: Tensor, per_class: Tensor, class_weights: tuple[float, ...] | None) -> Tensor:
    """Σ_k q_k · w_k · ℓ_k over the last axis."""
    if class_weights is not None:
        if len(class_weights) != q.shape[-1]:
            raise InputError(f"{len(class_weights)} class weights for {q.shape[-1]} classes; give one a class")
        q = q * _tensor(tuple(class_weights), per_class.dtype, per_class.device)
    return (q.to(per_class.dtype) * per_class).sum(-1)


def mean(values: Tensor, weight: Tensor | None) -> Tensor:
    """Mean over items, weighted if the batch carries weights."""
    if weight is None:
        return values.mean()
    weight = weight.to(values.dtype)
    return (values * weight).sum() / weight.sum().clamp_min(torch.finfo(values.dtype).tiny)  # tiny: all weights 0


@lru_cache(maxsize=32)
def _tensor(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # Kept: copying a list to the GPU at every step would wait for the device.
    return torch.tensor(values, dtype=dtype, device=device)
