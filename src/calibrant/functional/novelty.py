"""Scores of how unfamiliar an item looks to a predictor, from its logits, in float64. Higher is less familiar.

    max_probability    log(1 − max_k p_k)                                  (Hendrycks 2017; stable where p rounds to 1)
    entropy            −Σ_k p_k log p_k                                    (AR §5.5, PEP §3.2)
    mutual_information H(p̄) − mean_m H(p_m) = mean_m KL(p_m ‖ p̄)           (of M members)
    energy             −log Σ_k exp z_k                                    (Liu 2020; raw logits only)
    max_logit          −max_k z_k                                          (Hendrycks 2022; raw logits only)

The last two need the scale of raw logits, which log-probabilities have lost.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Spacing = Literal["log", "linear"]

LEAST_ENTROPY = 1e-8
"""Where logarithmic bins of entropy begin (as in the plots of Maddox 2019); smaller values go into the first bin."""


def max_probability(logits: Tensor) -> Tensor:
    """log(1 − p_max). It ranks like 1 − p_max, and keeps its digits where p_max rounds to 1."""
    top, other = _split(logits)
    rest = torch.logsumexp(other - top[..., None], -1)
    return rest - torch.nn.functional.softplus(rest)


def entropy(logits: Tensor) -> Tensor:
    """−Σ p log p in nats, accurate for tiny entropies because the top class's term is log1p(R)/(1 + R)."""
    top, other = _split(logits)
    away = other - top[..., None]
    weight = away.exp()
    rest = weight.sum(-1)
    log_z = torch.log1p(rest)
    inner = torch.where(weight > 0, weight * (log_z[..., None] - away), 0.0).sum(-1)
    return (log_z + inner) / (1 + rest)


def mutual_information(members: Tensor) -> Tensor:
    """The mutual information of members [M, N, K], as a mean of KL divergences so that rounding cannot make it
    negative."""
    log_p = torch.log_softmax(members.double(), -1)
    log_mean = torch.logsumexp(log_p, 0) - math.log(len(members))
    p = log_p.exp()
    terms = torch.where(p > 0, p * (log_p - log_mean), 0.0)
    return terms.sum(-1).mean(0).clamp_min(0)


def energy(logits: Tensor) -> Tensor:
    """−logsumexp at temperature 1; for members [M, N, K], their mean."""
    e: Tensor = -torch.logsumexp(logits.double(), -1)
    return e.mean(0) if logits.ndim == 3 else e


def max_logit(logits: Tensor) -> Tensor:
    e: Tensor = -logits.double().amax(-1)
    return e.mean(0) if logits.ndim == 3 else e


def _split(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(the largest logit, the other logits)."""
    z = logits.double()
    top, index = z.max(-1)
    keep = torch.ones_like(z, dtype=torch.bool).scatter_(-1, index[..., None], False)
    return top, z[keep].reshape(*z.shape[:-1], z.shape[-1] - 1)


def entropy_edges(k: int, bins: int = 30, spacing: Spacing = "log") -> Tensor:
    """The edges of `bins` bins of entropy up to its maximum, ln K."""
    most = math.log(k)
    if spacing == "linear":
        return torch.linspace(0, most, bins + 1, dtype=torch.float64)
    return torch.logspace(math.log10(LEAST_ENTROPY), math.log10(most), bins + 1, dtype=torch.float64)


def histogram(values: Tensor, edges: Tensor, weights: Tensor | None = None) -> Tensor:
    """The counts in right-closed bins, [bins], or [B, bins] under `weights` [B, N]. Values outside go into the first or
    last bin."""
    bins = len(edges) - 1
    index = (torch.searchsorted(edges, values.double().contiguous(), side="left") - 1).clamp(0, bins - 1)
    if weights is None:
        return torch.bincount(index, minlength=bins).double()
    return weights.double() @ torch.nn.functional.one_hot(index, bins).double()


def symmetrised_kl(inside: Tensor, outside: Tensor, smoothing: float = 0.5) -> Tensor:
    """KL(p ‖ q) + KL(q ‖ p) = Σ_b (p_b − q_b) log(p_b / q_b) of two histograms [..., bins] of counts.

    This is Kullback and Leibler's own symmetric divergence. `smoothing` items are added to each bin. PEP §3.2 does not
    say which bins and smoothing it uses, nor whether the two directions are added or averaged. Here they are added.
    """
    p, q = (
        (counts + smoothing) / (counts.sum(-1, keepdim=True) + smoothing * counts.shape[-1])
        for counts in (inside.double(), outside.double())
    )
    return torch.where(p == q, 0.0, (p - q) * (p / q).log()).sum(-1)
