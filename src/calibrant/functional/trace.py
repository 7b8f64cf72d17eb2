"""Stochastic trace of a matrix that is only known by its products A @ v (Hutchinson 1989).

E[vᵀ A v] = tr A for v of independent signs. Tested on small dense matrices whose trace is known; it
never sees a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Operator(Protocol):
    """A symmetric matrix of side `size` that can be multiplied from the left."""

    @property
    def size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...

    def __matmul__(self, v: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Trace:
    """An estimate and its standard error over probes (0 when exact)."""

    value: float
    standard_error: float
    probes: int


def hutchinson(matrix: Operator, probes: int, generator: torch.Generator) -> Trace:
    """tr A from `probes` products with random signs."""
    draws = []
    for _ in range(probes):
        v = signs(matrix.size, generator, matrix.device, matrix.dtype)
        draws.append(float(v.double() @ (matrix @ v).double()))
    values = torch.tensor(draws, dtype=torch.float64)
    error = float(values.std() / probes**0.5) if probes > 1 else float("nan")
    return Trace(float(values.mean()), error, probes)


def exact(matrix: Operator) -> Trace:
    """tr A by `size` products with unit vectors: for small matrices, and for testing."""
    total = 0.0
    for i in range(matrix.size):
        unit = torch.zeros(matrix.size, device=matrix.device, dtype=matrix.dtype)
        unit[i] = 1
        total += float((matrix @ unit)[i])
    return Trace(total, 0.0, matrix.size)


def signs(size: int, generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> Tensor:
    """±1 with equal probability, drawn where the generator lives."""
    draw = torch.randint(0, 2, (size,), generator=generator, device=generator.device)
    return (2 * draw - 1).to(device=device, dtype=dtype)
