"""Sharpness of the loss: eigenvalues of its Hessian, by mini-batch and overall (SS §2.2, A.3, Fig. 8, C.3, D.2).

    spectrum:  H = ∪_i {λ_1, …, λ_k of ∂²L(w, g(B_i))/∂w²}      (Alg. 1: mini-batches B_i, augmented by g)
    density:   φ(λ) = 1/P Σ_p δ(λ − λ_p) of the Hessian over all batches together, by stochastic Lanczos quadrature
    trace:     Σ_p λ_p of the same Hessian, by Hutch++

The paper insists on the loss that training minimises: pass *augmented* batches, the training's own loss and its
`weight_decay`. The paper's power iteration is `method="power"`; Lanczos needs fewer products and bounds its error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.diagnostics.batches import each_batch
from calibrant.diagnostics.curvature import Curvature, Loss, full_precision
from calibrant.ensembles.perturbation import Where, select
from calibrant.errors import unknown, warn
from calibrant.functional.krylov import TOLERANCE, Quadrature, lanczos, power_iteration, quadrature
from calibrant.functional.trace import Trace, hutchpp

Method = Literal["lanczos", "power"]


@dataclass(frozen=True, eq=False)
class HessianSpectrum:
    """One row per mini-batch, with its largest eigenvalues in falling order."""

    eigenvalues: Tensor  # [batches, k] float64
    residuals: Tensor  # [batches, k] ‖H u − λ u‖: the Hessian has an eigenvalue within this distance of each
    products: Tensor  # [batches] number of Hessian products
    vectors: Tensor | None = None  # [batches, k, parameters], if asked for

    @property
    def largest(self) -> Tensor:
        """[batches] The largest eigenvalue of each, as in SS Fig. 8."""
        return self.eigenvalues[:, 0]


@full_precision()
def hessian_spectrum(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    k: int = 1,
    loss: Loss = F.cross_entropy,
    weight_decay: float = 0.0,
    kind: str = "hessian",
    where: Where = "all",
    dropout: bool = True,
    method: Method = "lanczos",
    tol: float | None = None,
    most: int = 1000,
    chunk: int | None = None,
    vectors: bool = False,
    seed: int = 0,
) -> HessianSpectrum:
    """The largest eigenvalues of each mini-batch's Hessian (SS Algorithm 1), or Gauss–Newton or Fisher matrix (`kind`).

    `loss(logits, targets)` returns the mean loss, or one loss per item. `tol` is relative. For Lanczos it bounds the
    error (default 1e-7); for power iteration, the change from one product to the next (default 1e-3, as in PyHessian).
    Lanczos holds max(20, 2k + 10) + 1 vectors of the parameters' size. `chunk` items go through the network at once; a
    batch that does not fit into memory is split automatically.
    """
    if method not in get_args(Method):
        raise unknown("method", str(method), get_args(Method))
    found = []
    for i, batch in enumerate(each_batch(batches)):
        matrix = Curvature(model, [batch], loss, kind, select(model, where), weight_decay, dropout, i, chunk)
        rng = torch.Generator().manual_seed(seed + i)
        if method == "lanczos":
            pairs = lanczos(matrix, k, rng, near=matrix.gradient(), tol=TOLERANCE if tol is None else tol, most=most)
        else:
            pairs = power_iteration(matrix, k, rng, tol=1e-3 if tol is None else tol, most=min(most, 100))
        found.append(replace(pairs, vectors=pairs.vectors.cpu() if vectors else pairs.vectors[:0]))
    if missed := sum(not pairs.converged for pairs in found):
        warn(f"{missed} of {len(found)} batches did not reach the tolerance in {most} products; see `residuals`")
    return HessianSpectrum(
        torch.stack([pairs.values for pairs in found]),
        torch.stack([pairs.residuals for pairs in found]),
        torch.tensor([pairs.products for pairs in found]),
        torch.stack([pairs.vectors for pairs in found]) if vectors else None,
    )


@full_precision()
def hessian_density(
    model: nn.Module, batches: Iterable[Any], *, steps: int = 80, probes: int = 4, seed: int = 0, **options: Any
) -> Quadrature:
    """The density of all eigenvalues of the Hessian over all batches together.

    It takes `probes` × `steps` products and holds `steps` + 1 vectors. `options` are those of `Curvature`:
    `loss`, `kind`, `weight_decay`, `dropout`, `parameters`, `chunk`.
    """
    matrix = Curvature(model, list(each_batch(batches)), **options)
    return quadrature(matrix, steps, probes, torch.Generator().manual_seed(seed))


@full_precision()
def hessian_trace(
    model: nn.Module, batches: Iterable[Any], *, products: int = 60, seed: int = 0, **options: Any
) -> Trace:
    """The sum of all eigenvalues of the Hessian, with an interval.

    It holds `products` / 3 vectors. `options` are those of `hessian_density`.
    """
    matrix = Curvature(model, list(each_batch(batches)), **options)
    return hutchpp(matrix, products, torch.Generator().manual_seed(seed))
