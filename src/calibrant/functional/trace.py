"""The stochastic trace of a matrix that is known only by its products A @ v.

    Hutchinson (1989):           E[vᵀ A v] = tr A,  v of independent signs
    Hutch++ (Meyer et al. 2021): tr A = tr QᵀAQ + tr (I − QQᵀ)A(I − QQᵀ),  Q spans A S; only the second term is sampled

The functions take any such operator and never see a model, so they are tested on small dense matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from calibrant.errors import InputError


class Operator(Protocol):
    """A symmetric matrix of side `size` that can multiply a vector."""

    @property
    def size(self) -> int: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...

    def __matmul__(self, v: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Trace:
    """An estimate, its standard error over probes (0 if exact), and the number of probes."""

    value: float
    standard_error: float
    probes: int

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Student's interval over the probes."""
        from scipy.stats import t

        reach = float(t.ppf(0.5 + confidence / 2, max(self.probes - 1, 1))) * self.standard_error
        return self.value - reach, self.value + reach


def hutchinson(matrix: Operator, probes: int, generator: torch.Generator) -> Trace:
    """tr A from `probes` products with random signs."""
    draws = []
    for _ in range(probes):
        v = signs(matrix.size, generator, matrix.device, matrix.dtype)
        draws.append(float(v.double() @ (matrix @ v).double()))
    values = torch.tensor(draws, dtype=torch.float64)
    error = float(values.std() / probes**0.5) if probes > 1 else float("nan")
    return Trace(float(values.mean()), error, probes)


def hutchpp(matrix: Operator, products: int, generator: torch.Generator) -> Trace:
    """tr A from this many products: a third finds a subspace, a third computes its trace, a third samples the rest.

    If few eigenvalues carry most of the trace, as in trained networks, the error is far below Hutchinson's.
    """
    third = min(products // 3, matrix.size)
    if third < 2:
        raise InputError(f"{products} products are too few for a trace with an interval; use 6 or more")

    def draws() -> list[Tensor]:
        return [signs(matrix.size, generator, matrix.device, matrix.dtype) for _ in range(third)]

    q = torch.linalg.qr(torch.stack([matrix @ v for v in draws()], 1))[0]
    inside = sum(float(column.double() @ (matrix @ column).double()) for column in q.T)
    rest = [v - q @ (q.T @ v) for v in draws()]
    values = torch.tensor([float(v.double() @ (matrix @ v).double()) for v in rest], dtype=torch.float64)
    return Trace(inside + float(values.mean()), float(values.std() / third**0.5), third)


def exact(matrix: Operator) -> Trace:
    """tr A from `size` products with unit vectors, for small matrices and tests."""
    total = 0.0
    for i in range(matrix.size):
        unit = torch.zeros(matrix.size, device=matrix.device, dtype=matrix.dtype)
        unit[i] = 1
        total += float((matrix @ unit)[i])
    return Trace(total, 0.0, matrix.size)


def signs(size: int, generator: torch.Generator, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Random signs ±1, drawn on the generator's device."""
    draw = torch.randint(0, 2, (size,), generator=generator, device=generator.device)
    return (2 * draw - 1).to(device=device, dtype=dtype)
