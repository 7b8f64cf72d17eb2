"""The trace of the empirical Fisher information of a model's log-likelihood: tr F̃ = Σ_i ‖∇ ln p_i‖² (PEP Eq. 19)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from calibrant.ensembles.ensemble import checked, evaluating
from calibrant.functional.trace import Trace, signs

Batches = Sequence[tuple[Tensor, Tensor]]


def fisher_trace(
    model: nn.Module, parameters: Mapping[str, nn.Parameter], batches: Batches, probes: int, rng: torch.Generator
) -> Trace:
    """Σ_i ‖∇ ln p_i‖² without a gradient per item: E‖Σ_i r_i ∇ ln p_i‖² over random signs r.

    `probes=0` is exact, one backward pass an item.
    """
    thetas = list(parameters.values())
    if probes == 0:
        exact = sum(_square(model, thetas, x[i : i + 1], y[i : i + 1]) for x, y in batches for i in range(len(x)))
        return Trace(float(exact), 0.0, 0)
    draws = []
    for _ in range(probes):
        draws.append(sum(_square(model, thetas, x, y, signs(len(x), rng, x.device, torch.float32)) for x, y in batches))
    values = torch.tensor(draws, dtype=torch.float64)
    error = float(values.std() / probes**0.5) if probes > 1 else float("nan")
    return Trace(float(values.mean()), error, probes)


def _square(
    model: nn.Module, thetas: Sequence[nn.Parameter], x: Tensor, y: Tensor, weight: Tensor | None = None
) -> float:
    each = _log_likelihood(model, x, y)
    total = (each if weight is None else each * weight.to(each.dtype)).sum()
    gradient = torch.autograd.grad(total, thetas, materialize_grads=True)
    return float(sum(g.double().square().sum() for g in gradient))


def _log_likelihood(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """ln p(y_i; x_i, θ) of each item."""
    with evaluating(model) as network:
        log_p = torch.log_softmax(checked(network(x), len(x)), -1)
    return log_p.gather(1, y[:, None])[:, 0]
