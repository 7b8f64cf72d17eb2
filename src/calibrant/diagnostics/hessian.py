"""How sharp is the loss? Eigenvalues of its Hessian, by mini-batch and over all items (SS §2.2, A.3, Fig. 8, C.3, D.2).

    spectrum:  H = ∪_i {λ_1, …, λ_k of ∂²L(w, g(B_i))/∂w²}      (Alg. 1: mini-batches B_i, augmented by g)
    density:   φ(λ) = 1/P Σ_p δ(λ − λ_p) of the Hessian over all batches together, by stochastic Lanczos quadrature
    trace:     Σ_p λ_p of the same, by Hutch++

The paper insists on the loss that training minimises: pass *augmented* batches, the training's own loss and its
`weight_decay`. Its power iteration is `method="power"`; Lanczos needs fewer products and knows its error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.diagnostics.curvature import Curvature, Loss, several
from calibrant.ensembles.perturbation import Where, select
from calibrant.errors import InputError, unknown, warn
from calibrant.functional.krylov import TOLERANCE, Quadrature, lanczos, power_iteration, quadrature
from calibrant.functional.trace import Trace, hutchpp

Method = Literal["lanczos", "power"]


@dataclass(frozen=True, eq=False)
class HessianSpectrum:
    """Each row is one mini-batch, its largest eigenvalues falling."""

    eigenvalues: Tensor  # [batches, k] float64
    residuals: Tensor  # [batches, k] ‖H u − λ u‖: an eigenvalue lies within this of each
    products: Tensor  # [batches] Hessian products
    vectors: Tensor | None = None  # [batches, k, parameters], if asked for

    @property
    def largest(self) -> Tensor:
        """[batches] what SS Fig. 8 shows."""
        return self.eigenvalues[:, 0]


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

    `loss(logits, targets)` is a mean, or one number per item. `tol` is relative: of Lanczos, the error (1e-7); of power
    iteration, the change from one product to the next (1e-3, as in PyHessian). Lanczos holds max(20, 2k + 10) + 1
    vectors of the parameters' size. `chunk` items go through the network at once; too large a batch is split by itself.
    """
    if method not in get_args(Method):
        raise unknown("method", str(method), get_args(Method))
    found = []
    for i, batch in enumerate(several(batches)):
        matrix = Curvature(model, [batch], loss, kind, select(model, where), weight_decay, dropout, i, chunk)
        rng = torch.Generator().manual_seed(seed + i)
        if method == "lanczos":
            pairs = lanczos(matrix, k, rng, near=matrix.gradient(), tol=TOLERANCE if tol is None else tol, most=most)
        else:
            pairs = power_iteration(matrix, k, rng, tol=1e-3 if tol is None else tol, most=min(most, 100))
        found.append(replace(pairs, vectors=pairs.vectors.cpu() if vectors else pairs.vectors[:0]))
    if not found:
        raise InputError("there are no batches to take the Hessian of; pass at least one")
    if missed := sum(not pairs.converged for pairs in found):
        warn(f"{missed} of {len(found)} batches did not reach the tolerance in {most} products; see `residuals`")
    return HessianSpectrum(
        torch.stack([pairs.values for pairs in found]),
        torch.stack([pairs.residuals for pairs in found]),
        torch.tensor([pairs.products for pairs in found]),
        torch.stack([pairs.vectors for pairs in found]) if vectors else None,
    )


def hessian_density(
    model: nn.Module, batches: Iterable[Any], *, steps: int = 80, probes: int = 4, seed: int = 0, **options: Any
) -> Quadrature:
    """The density of all eigenvalues of the Hessian over all batches together.

    Takes `probes` × `steps` products and holds `steps` + 1 vectors. Options are those of `Curvature`:
    `loss`, `kind`, `weight_decay`, `dropout`, `parameters`, `chunk`.
    """
    matrix = Curvature(model, list(several(batches)), **options)
    return quadrature(matrix, steps, probes, torch.Generator().manual_seed(seed))


def hessian_trace(
    model: nn.Module, batches: Iterable[Any], *, products: int = 60, seed: int = 0, **options: Any
) -> Trace:
    """The sum of all eigenvalues of the Hessian, with an interval.

    Holds a third of `products` vectors. Options are those of the density.
    """
    matrix = Curvature(model, list(several(batches)), **options)
    return hutchpp(matrix, products, torch.Generator().manual_seed(seed))
