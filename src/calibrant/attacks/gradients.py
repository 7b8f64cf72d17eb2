"""A predictor as a function of pixels: its logits, and the gradient of an objective of them.

    g_j = ∂/∂x Σ_i objective_j(z(x_i))          (items are independent, so this is the gradient of each item)

A network is differentiated as it is. An ensemble is pooled, z = log (1/M) Σ_m softmax z_m, the expectation over its
members (Athalye 2018). The first pass computes the pooled logits. The second pass adds each member's part of the
gradient while that member exists, because PEP's perturbed weights and dropout's masks are gone afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.attacks.bounds import Bounds
from calibrant.attacks.networks import modules
from calibrant.errors import InputError
from calibrant.functional.model_output import logits_of

HALF = torch.float16
SCALE = 2.0**8
"""Gradients in half precision are multiplied by this factor, so that small ones keep their digits."""

Objective = Callable[[Tensor], Tensor]
"""logits [N, K] → [N], or [J, N] for J gradients per item."""


class PixelModel:
    """A predictor that takes pixels. With `half`, gradients are in float16; `logits` stays in full precision."""

    def __init__(self, predictor: Any, bounds: Bounds, dtype: torch.dtype, *, half: bool = False) -> None:
        if not callable(predictor):
            raise InputError(f"{type(predictor).__name__} is not a model: it cannot be called on a batch")
        self.predictor, self.bounds, self.dtype, self.half = predictor, bounds, dtype, half
        ensemble = not isinstance(predictor, nn.Module) and hasattr(predictor, "member") and hasattr(predictor, "size")
        self.members = int(predictor.size) if ensemble else 0
        # Dropout's masks belong to a batch, so all items must stay in it, in their places.
        self.whole_batch = ensemble and _is_random(predictor)

    @torch.no_grad()
    def logits(self, pixel: Tensor, batch: int) -> Tensor:
        """Return logits [N, K] in float32 or wider, computed for at most `batch` items at a time."""
        parts = [pixel] if self.whole_batch else torch.split(pixel, batch)
        return torch.cat([self._forward(self.bounds.inputs(part, self.dtype)) for part in parts])

    def gradient(self, pixel: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
        """Return logits [N, K] and gradients [J, N, …] at `pixel`. Each row of the objective takes a backward pass."""
        with torch.enable_grad():
            point = pixel.detach().requires_grad_()
            if self.members:
                return self._pooled_gradient(point, objective)
            with torch.autocast(point.device.type, dtype=HALF) if self.half else nullcontext():
                logits = self._forward(self.bounds.inputs(point, self.dtype))
            self._check(logits)
            scale = SCALE if self.half else 1.0
            rows = _rows(scale * objective(logits))
            gradients = [torch.autograd.grad(row.sum(), point, retain_graph=j + 1 < len(rows))[0] / scale
                         for j, row in enumerate(rows)]  # fmt: skip
            return logits.detach(), torch.stack(gradients)

    def _pooled_gradient(self, point: Tensor, objective: Objective) -> tuple[Tensor, Tensor]:
        """Apply the chain rule to the pool: each member's backward pass starts from ∂objective/∂z_m."""
        with torch.no_grad():
            x = self.bounds.inputs(point, self.dtype)
            each = [self._member(m, x) for m in range(self.members)]
        leaves = [logits.requires_grad_() for logits in each]
        pooled = _pool(leaves)
        rows = _rows(objective(pooled))
        parts = [torch.autograd.grad(row.sum(), leaves, retain_graph=True) for row in rows]
        total = [torch.zeros_like(point) for _ in rows]
        for m in range(self.members):
            logits = self._member(m, self.bounds.inputs(point, self.dtype))
            self._check(logits)
            for j, part in enumerate(parts):
                total[j] += torch.autograd.grad(logits, point, part[m], retain_graph=j + 1 < len(parts))[0]
        return pooled.detach(), torch.stack(total)

    def _forward(self, x: Tensor) -> Tensor:
        if self.members:
            return _pool([self._member(m, x) for m in range(self.members)])
        return _checked(self.predictor(x), len(x))

    def _member(self, m: int, x: Tensor) -> Tensor:
        with self.predictor.member(m) as network:
            return _checked(network(x), len(x))

    def _check(self, logits: Tensor) -> None:
        if not logits.requires_grad:
            name = getattr(self.predictor, "__name__", type(self.predictor).__name__)
            raise InputError(
                f"{name} gives logits without a gradient: its output does not depend on its input, or it runs under "
                "no_grad; pass the network itself, or an ensemble with member(j)"
            )


def _rows(objective: Tensor) -> Tensor:
    return objective[None] if objective.ndim == 1 else objective


def _is_random(predictor: Any) -> bool:
    """Return whether a layer of a member is in training mode, so that it draws random numbers for each batch."""
    with predictor.member(0):
        return any(sub.training for network in modules(predictor) for sub in network.modules())


def _pool(members: Sequence[Tensor]) -> Tensor:
    log_p = torch.log_softmax(torch.stack(list(members)), -1)
    return torch.logsumexp(log_p, 0) - math.log(len(members))


def _checked(output: Any, n: int) -> Tensor:
    """Return the output as logits [N, K] in float32 or wider."""
    logits = logits_of(output)
    if logits.ndim != 2 or len(logits) != n or logits.shape[1] < 2:
        raise InputError(f"the model returned {tuple(logits.shape)} for {n} items; expected logits [N, K] with K ≥ 2")
    return logits if logits.dtype == torch.float64 else logits.float()
