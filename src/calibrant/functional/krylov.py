"""The largest eigenvalues and the spectral density of a symmetric matrix that is known only by its products A @ v.

    Lanczos:  V orthonormal,  T = Vᵀ A V,  A V = V T + w eᵀ;   a Ritz pair (θ, u = V s) has ‖A u − θ u‖ = ‖w‖·|s_m|
    error of θ ≤ min(r, r²/gap)      r: that residual; gap: distance to the other Ritz values (Parlett 1998, ch. 11)
    density:  φ(λ) ≈ Σ_j τ_j δ(λ − θ_j),   τ_j = s_{1j}²      (stochastic Lanczos quadrature; Ghorbani 2019)

Every new vector is made orthogonal to all others, so rounding cannot make an eigenvalue appear twice. At most
`basis + 1` vectors are held: a full basis is replaced by its best Ritz vectors (thick restart; Wu & Simon 2000). Unlike
scipy's `eigsh`, which checks convergence only when its basis is full and runs on the CPU, this stops after any product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.trace import Operator, signs

TOLERANCE = 1e-7
"""The default error of an eigenvalue, relative to the largest absolute eigenvalue."""
BLOCK = 2**21
"""Numbers that are held in float64 at a time; larger blocks do not fit a CPU's caches and take ten times as long."""


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """The k largest eigenvalues, in falling order. The matrix has an eigenvalue within `residuals` of each."""

    values: Tensor  # [k] float64
    residuals: Tensor  # [k] float64, ‖A u − λ u‖
    vectors: Tensor  # [k, size]
    products: int  # how often the matrix was multiplied
    converged: bool  # whether the tolerance was reached
    history: tuple[float, ...] = ()  # the estimate of the first eigenvalue after each product


@dataclass(frozen=True, eq=False)
class Quadrature:
    """Nodes and weights [probes, steps] of a spectral density; the weights of each probe add up to 1."""

    nodes: Tensor
    weights: Tensor
    products: int

    def density(self, at: Tensor, width: float) -> Tensor:
        """The density at these points, where each node is a Gaussian with standard deviation `width`."""
        bumps = torch.exp(-((at[:, None] - self.nodes.reshape(-1)) ** 2) / (2 * width**2))
        mean: Tensor = bumps @ self.weights.reshape(-1) / (width * (2 * torch.pi) ** 0.5 * len(self.nodes))
        return mean


def lanczos(
    matrix: Operator,
    k: int,
    generator: torch.Generator,
    *,
    near: Tensor | None = None,
    tol: float = TOLERANCE,
    basis: int | None = None,
    most: int = 1000,
) -> Eigenpairs:
    """The k largest eigenvalues by thick-restart Lanczos; `most` bounds the products.

    The start vector is random. If `near` guesses the direction of the largest eigenvectors, it is half of the start
    vector; the random half makes sure that no eigenvector is missed. The iteration stops when the error bounds of all k
    are below `tol` times the largest absolute eigenvalue. A repeated eigenvalue is found only once.
    """
    _check(matrix, k)
    width = min(matrix.size, max(20, 2 * k + 10) if basis is None else basis)
    if basis is not None and basis < k + 2:
        raise InputError(f"basis={basis} is too small for k={k} eigenvalues; use {k + 2} or more")
    tol = max(tol, 10 * torch.finfo(matrix.dtype).eps)
    vectors = torch.zeros(width + 1, matrix.size, device=matrix.device, dtype=matrix.dtype)
    small = torch.zeros(width, width, dtype=torch.float64)
    vectors[0] = _random_unit(matrix, generator)
    if near is not None and (long := _length(near)) > 0:
        vectors[0] += near / long
        vectors[0] /= _length(vectors[0])
    m = products = 0
    history: list[float] = []
    while True:
        length = _expand(matrix, vectors, small, m)
        m, products = m + 1, products + 1
        theta, s = (t.flip(-1) for t in torch.linalg.eigh(small[:m, :m]))
        history.append(float(theta[0]))
        residual = length * s[-1].abs()
        scale = float(theta.abs().max())
        ended = length <= torch.finfo(matrix.dtype).eps * scale * m**0.5  # the basis is an invariant subspace
        converged = m >= k and (ended or bool((error_bound(theta, residual)[:k] <= tol * scale).all()))
        if converged or m == matrix.size or products >= most:
            kept = min(k, m)
            found = s[:, :kept].T.to(vectors) @ vectors[:m]
            done = converged or m == matrix.size
            return Eigenpairs(theta[:kept], residual[:kept], found, products, done, tuple(history))
        if ended:
            vectors[m] = _random_unit(matrix, generator, vectors[:m])
        if m == width:
            kept = min(k + (width - k) // 2, width - 1)
            last = vectors[m].clone()
            vectors[:kept] = s[:, :kept].T.to(vectors) @ vectors[:m]
            vectors[kept] = last
            small.zero_()
            small[:kept, :kept] = torch.diag(theta[:kept])
            m = kept


def power_iteration(
    matrix: Operator, k: int, generator: torch.Generator, *, tol: float = 1e-3, most: int = 100
) -> Eigenpairs:
    """SS's own method (Alg. 1): the k eigenvalues that are largest in absolute value, one after the other.

    It stops when an eigenvalue changes by less than `tol` of itself from one product to the next, or after `most`
    products for each. This rule does not bound the error; `residuals` do.
    """
    _check(matrix, k)
    vectors = torch.zeros(k, matrix.size, device=matrix.device, dtype=matrix.dtype)
    values, residuals = torch.zeros(k, dtype=torch.float64), torch.zeros(k, dtype=torch.float64)
    products, converged = 0, True
    history: list[float] = []
    for i in range(k):
        v, last, settled = _random_unit(matrix, generator, vectors[:i]), float("nan"), False
        for _ in range(most):
            w = _product(matrix, v)
            products += 1
            values[i] = value = float(_inner(v[None], w))
            residuals[i] = _length(w - value * v)
            history += [value] if i == 0 else []
            vectors[i] = v
            settled = abs(value - last) <= tol * abs(last)
            if settled:
                break
            w = _orthogonal(w, vectors[:i])[0]
            v, last = w / max(_length(w), torch.finfo(w.dtype).tiny), value
        converged &= settled
    order = values.argsort(descending=True)
    held = vectors[order.to(vectors.device)]
    return Eigenpairs(values[order], residuals[order], held, products, converged, tuple(history))


def quadrature(matrix: Operator, steps: int, probes: int, generator: torch.Generator) -> Quadrature:
    """Stochastic Lanczos quadrature: `steps` products for each of `probes` random sign vectors."""
    if steps < 1 or probes < 1:
        raise InputError(f"steps={steps} and probes={probes} must be at least 1")
    steps = min(steps, matrix.size)
    nodes, weights = (torch.zeros(probes, steps, dtype=torch.float64) for _ in range(2))
    vectors = torch.zeros(steps + 1, matrix.size, device=matrix.device, dtype=matrix.dtype)
    products = 0
    for p in range(probes):
        small = torch.zeros(steps, steps, dtype=torch.float64)
        vectors[0] = signs(matrix.size, generator, matrix.device, matrix.dtype) / matrix.size**0.5
        for m in range(1, steps + 1):
            length = _expand(matrix, vectors, small, m - 1)
            products += 1
            if length <= torch.finfo(matrix.dtype).eps * float(small.abs().max()) * m:  # exact already
                break
        theta, s = torch.linalg.eigh(small[:m, :m])
        nodes[p, :m], weights[p, :m] = theta, s[0] ** 2
    return Quadrature(nodes, weights, products)


def error_bound(theta: Tensor, residual: Tensor) -> Tensor:
    """min(r, r²/gap) of each Ritz value. The gap is the one between Ritz values, so r²/gap is an estimate."""
    if len(theta) == 1:
        return residual
    apart = (theta[:, None] - theta).abs().fill_diagonal_(float("inf")).amin(1)
    return torch.minimum(residual, residual**2 / apart.clamp_min(torch.finfo(torch.float64).tiny))


def _expand(matrix: Operator, vectors: Tensor, small: Tensor, m: int) -> float:
    """Multiply vector m, write column m of T and vector m + 1, and return the latter's length before normalisation."""
    w, along = _orthogonal(_product(matrix, vectors[m]), vectors[: m + 1])
    small[: m + 1, m] = small[m, : m + 1] = along.cpu()
    length = _length(w)
    vectors[m + 1] = w / max(length, torch.finfo(w.dtype).tiny)
    return length


def _orthogonal(w: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """(w orthogonal to these orthonormal rows, the parts removed). Done twice, which is enough (Giraud 2005)."""
    along = _inner(vectors, w)
    w = w - along.to(w.dtype) @ vectors
    again = _inner(vectors, w)
    return w - again.to(w.dtype) @ vectors, along + again


def _inner(vectors: Tensor, w: Tensor) -> Tensor:
    """The product of each row with w, in float64: a float32 sum of 11 million terms is wrong in the fourth digit."""
    total = torch.zeros(len(vectors), dtype=torch.float64, device=w.device)
    columns = BLOCK // max(len(vectors), 1)
    for rows, part in zip(torch.split(vectors, columns, 1), torch.split(w, columns), strict=True):
        total += rows.double() @ part.double()
    return total


def _length(w: Tensor) -> float:
    return math.sqrt(float(_inner(w[None], w)[0]))


def _product(matrix: Operator, v: Tensor) -> Tensor:
    w = matrix @ v
    if not bool(torch.isfinite(w).all()):
        raise InputError(
            "a product with the curvature is not finite (NaN or infinite), so it has no eigenvalues; look for weights, "
            "inputs or losses that are not finite, or compute in float64"
        )
    return w


def _random_unit(matrix: Operator, generator: torch.Generator, apart_from: Tensor | None = None) -> Tensor:
    v = torch.randn(matrix.size, generator=generator, device=generator.device).to(matrix.device, matrix.dtype)
    v = v if apart_from is None else _orthogonal(v, apart_from)[0]
    return v / _length(v)


def _check(matrix: Operator, k: int) -> None:
    if not 1 <= k <= matrix.size:
        raise InputError(f"k={k} eigenvalues of a matrix of side {matrix.size}; ask for 1 to {matrix.size}")
