"""Many small binary logistic fits at once, by damped Newton steps in float64: one per class, with few parameters each.

For every column c, with D features f_d[N, C] and targets t[N, C] in [0, 1] (Platt's are soft), minimise

    Σ_n [ softplus(η_nc) − t_nc η_nc ] + Σ_d r_d (θ_cd − m_d)²,     η_nc = Σ_d θ_cd f_d,nc

A parameter can be held at its value with `free` = False, which is how callers try bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BinaryFits:
    """θ[C, D], the objective of each column, and the largest remaining Newton decrement (an estimate of f − min f)."""

    theta: Tensor
    value: Tensor
    decrement: float
    iterations: int


def fit_columns(
    features: Sequence[Tensor],
    target: Tensor,
    ridge: Tensor,
    centre: Tensor,
    *,
    start: Tensor | None = None,
    free: Tensor | None = None,
    tolerance: float = 1e-10,
    limit: int = 200,
) -> BinaryFits:
    """Fit all columns together, each with its own step length."""
    d, c = len(features), target.shape[1]
    theta = (centre.expand(c, d) if start is None else start).clone()
    free = torch.ones(c, d, dtype=torch.bool) if free is None else free
    value, eta = _objective(features, target, theta, ridge, centre)
    iteration = 0
    while True:
        q = torch.sigmoid(eta)
        w, residual = q * (1 - q), q - target
        g = torch.stack([(f * residual).sum(0) for f in features], 1) + 2 * ridge * (theta - centre)
        h = torch.diag(2 * ridge).repeat(c, 1, 1)
        for i in range(d):
            wf = w * features[i]
            for j in range(i + 1):
                h[:, i, j] += (wf * features[j]).sum(0)
                h[:, j, i] = h[:, i, j]
        g = torch.where(free, g, 0.0)
        h = torch.where(free[:, :, None] & free[:, None, :], h, 0.0) + torch.diag_embed((~free).double())
        # scaled to a unit diagonal, because features may differ by orders of magnitude
        scale = h.diagonal(dim1=1, dim2=2).clamp_min(1e-300).rsqrt()
        unit = h * scale[:, :, None] * scale[:, None, :] + 1e-13 * torch.eye(d, dtype=h.dtype)
        step = -scale * torch.linalg.solve(unit, (scale * g)[..., None])[..., 0]
        decrement = -(g * step).sum(1) / 2
        open_ = decrement > tolerance * value.clamp_min(1e-3)
        if not bool(open_.any()) or iteration == limit:
            return BinaryFits(theta, value, float(decrement.max()), iteration)
        iteration += 1
        length = torch.where(open_, 1.0, 0.0).double()
        while True:
            trial = theta + length[:, None] * step
            new, eta_new = _objective(features, target, trial, ridge, centre)
            worse = (new > value - 2e-4 * length * decrement) & (length > 0)
            if not bool(worse.any()):
                break
            length = torch.where(worse, torch.where(length > 1e-12, length / 2, 0.0), length)
        if not bool((length > 0).any()):
            return BinaryFits(theta, value, float(decrement.max()), iteration)
        theta, value, eta = trial, new, eta_new


def _objective(
    features: Sequence[Tensor], target: Tensor, theta: Tensor, ridge: Tensor, centre: Tensor
) -> tuple[Tensor, Tensor]:
    eta = features[0] * theta[:, 0]
    for i, f in enumerate(features[1:], 1):
        eta = torch.addcmul(eta, f, theta[:, i])
    loss = torch.nn.functional.softplus(eta) - target * eta
    return loss.sum(0) + (ridge * (theta - centre).square()).sum(1), eta
