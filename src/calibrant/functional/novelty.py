"""Scores of how foreign an item looks to a predictor, from its logits; higher is more foreign. Float64.

    max_probability    log(1 − max_k p_k)                                  (Hendrycks 2017; stable where p rounds to 1)
    entropy            −Σ_k p_k log p_k                                    (AR §5.5, PEP §3.2)
    mutual_information H(p̄) − mean_m H(p_m) = mean_m KL(p_m ‖ p̄)           (of M members)
    energy             −log Σ_k exp z_k                                    (Liu 2020; raw logits only)
    max_logit          −max_k z_k                                          (Hendrycks 2022; raw logits only)

The last two read the scale of the logits, which log-probabilities have lost.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Spacing = Literal["log", "linear"]

LEAST_ENTROPY = 1e-8
"""Logarithmic bins of entropy begin here (as plotted by Maddox 2019); smaller values go into the first bin."""


def max_probability(logits: Tensor) -> Tensor:
    """log(1 − p_max), which ranks like 1 − p_max but keeps its digits where p_max rounds to 1."""
    top, other = _split(logits)
    rest = torch.logsumexp(other - top[..., None], -1)
    return rest - torch.nn.functional.softplus(rest)


def entropy(logits: Tensor) -> Tensor:
    """−Σ p log p in nats, with the digits of tiny entropies: the top class's own term is log1p(R)/(1 + R)."""
    top, other = _split(logits)
    away = other - top[..., None]
    weight = away.exp()
    rest = weight.sum(-1)
    log_z = torch.log1p(rest)
    inner = torch.where(weight > 0, weight * (log_z[..., None] - away), 0.0).sum(-1)
    return (log_z + inner) / (1 + rest)


def mutual_information(members: Tensor) -> Tensor:
    """Mutual information of members [M, N, K], as a mean of KL divergences, which rounding cannot make negative."""
    log_p = torch.log_softmax(members.double(), -1)
    log_mean = torch.logsumexp(log_p, 0) - math.log(len(members))
    p = log_p.exp()
    terms = torch.where(p > 0, p * (log_p - log_mean), 0.0)
    return terms.sum(-1).mean(0).clamp_min(0)


def energy(logits: Tensor) -> Tensor:
    """−logsumexp, temperature 1; of members [M, N, K] the mean."""
    e: Tensor = -torch.logsumexp(logits.double(), -1)
    return e.mean(0) if logits.ndim == 3 else e


def max_logit(logits: Tensor) -> Tensor:
    e: Tensor = -logits.double().amax(-1)
    return e.mean(0) if logits.ndim == 3 else e


def _split(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(the largest logit, the others)."""
    z = logits.double()
    top, index = z.max(-1)
    keep = torch.ones_like(z, dtype=torch.bool).scatter_(-1, index[..., None], False)
    return top, z[keep].reshape(*z.shape[:-1], z.shape[-1] - 1)


def entropy_edges(k: int, bins: int = 30, spacing: Spacing = "log") -> Tensor:
    """Edges of `bins` bins of entropy up to its maximum ln K."""
    most = math.log(k)
    if spacing == "linear":
        return torch.linspace(0, most, bins + 1, dtype=torch.float64)
    return torch.logspace(math.log10(LEAST_ENTROPY), math.log10(most), bins + 1, dtype=torch.float64)


def histogram(values: Tensor, edges: Tensor, weights: Tensor | None = None) -> Tensor:
    """Counts in right-closed bins; what lies outside goes into the first or the last. `weights` [B, N] → [B, bins]."""
    bins = len(edges) - 1
    index = (torch.searchsorted(edges, values.double().contiguous(), side="left") - 1).clamp(0, bins - 1)
    if weights is None:
        return torch.bincount(index, minlength=bins).double()
    return weights.double() @ torch.nn.functional.one_hot(index, bins).double()


def symmetrised_kl(inside: Tensor, outside: Tensor, smoothing: float = 0.5) -> Tensor:
    """KL(p ‖ q) + KL(q ‖ p) of two histograms [..., bins] of counts, each bin with `smoothing` items more.

    = Σ_b (p_b − q_b) log(p_b / q_b): Kullback and Leibler's own symmetric divergence. PEP §3.2 gives neither bins nor
    smoothing, nor whether the two directions are added or averaged: here they are added.
    """
    p, q = (
        (counts + smoothing) / (counts.sum(-1, keepdim=True) + smoothing * counts.shape[-1])
        for counts in (inside.double(), outside.double())
    )
    return torch.where(p == q, 0.0, (p - q) * (p / q).log()).sum(-1)
