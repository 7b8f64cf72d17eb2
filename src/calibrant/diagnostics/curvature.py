"""The Hessian of a model's log-likelihood as an operator, and its empirical Fisher trace.

    L(θ) = Σ_i ln p(y_i; x_i, θ),   H = ∂²L/∂θ²  through H @ v,   tr F̃ = Σ_i ‖∇ ln p_i‖²   (PEP Eq. 19)

Only the chosen parameters count; the model is in eval mode (BatchNorm's statistics are constants).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from calibrant.ensembles.ensemble import checked, evaluating
from calibrant.functional.trace import Trace, signs

Batches = Sequence[tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class LogLikelihoodHessian:
    """∂²/∂θ² Σ_i ln p(y_i; x_i, θ) over `parameters`; a symmetric matrix known by its products."""

    model: nn.Module
    parameters: Mapping[str, nn.Parameter]
    batches: Batches

    @property
    def size(self) -> int:
        return sum(p.numel() for p in self.parameters.values())

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.parameters.values())).dtype

    def __matmul__(self, v: Tensor) -> Tensor:
        """H v by differentiating (∇L)·v once more, batch by batch."""
        thetas = list(self.parameters.values())
        parts = [chunk.view_as(p) for chunk, p in zip(torch.split(v, [p.numel() for p in thetas]), thetas, strict=True)]
        total = torch.zeros_like(v)
        for x, y in self.batches:
            gradient = torch.autograd.grad(log_likelihood(self.model, x, y).sum(), thetas, create_graph=True)
            slope = sum((g * part).sum() for g, part in zip(gradient, parts, strict=True))
            assert isinstance(slope, Tensor)
            second = torch.autograd.grad(slope, thetas, materialize_grads=True)
            total += torch.cat([s.reshape(-1) for s in second])
        return total


def log_likelihood(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """ln p(y_i; x_i, θ) of each item."""
    with evaluating(model) as network:
        log_p = torch.log_softmax(checked(network(x), len(x)), -1)
    return log_p.gather(1, y[:, None])[:, 0]


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
    each = log_likelihood(model, x, y)
    total = (each if weight is None else each * weight.to(each.dtype)).sum()
    gradient = torch.autograd.grad(total, thetas, materialize_grads=True)
    return float(sum(g.double().square().sum() for g in gradient))
