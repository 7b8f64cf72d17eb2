"""Stability: the variance of an item's predicted probability over independent runs (AR §3.1).

    σ² = (1/N) Σ_i 1/(M − 1) Σ_m (p̂_{m,i} − p̄_i)²,     p̄_i the mean over the M runs

The paper does not say which class p̂ is the probability of. The true class is the likeliest reading; it is a setting.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from calibrant.errors import InputError, unknown

Of = Literal["true", "predicted", "confidence", "classes"]
"""The probability of the *true* class, or of the class that the runs *predict* together, or each run's own
*confidence*, or the sum of the variances of all *classes*."""


def variance_over_runs(logits: Tensor, labels: Tensor, of: Of = "true") -> Tensor:
    """Variance over independent runs of an item's predicted probability (AR §3.1).

    Returns one variance per item, [N] float64, from the logits [M, N, K] of M ≥ 2 runs.
    """
    if of not in get_args(Of):
        raise unknown("variance", str(of), get_args(Of))
    if logits.ndim != 3 or len(logits) < 2:
        raise InputError(f"variance over runs needs two or more runs, logits [M, N, K]; got {tuple(logits.shape)}")
    p = torch.softmax(logits.double(), -1)
    if of == "classes":
        total: Tensor = p.var(0).sum(-1)
        return total
    if of == "confidence":
        return p.max(-1).values.var(0)
    chosen = labels.to(p.device) if of == "true" else p.mean(0).argmax(-1)
    return p.gather(-1, chosen.expand(len(p), -1)[..., None])[..., 0].var(0)
