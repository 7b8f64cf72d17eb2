"""The PEP effect predicted from curvature (PEP Eq. 13–20): how much log-likelihood a small perturbation will gain.

    L(σ) ≈ L(θ*) + B_σ,   B_σ = σ²/2 Σ_i ΔL_i/L_i = σ²/2 [ΔL(θ*) + tr F̃(θ*)]            (Eq. 15, 20)

ΔL is the Laplacian of the log-likelihood (negative near a mode), F̃ the empirical Fisher information. Their sum is
positive where the network is overfitted. The approximation is of second order and holds for small σ only; the next term
is σ⁴/8·Δ² (in the paper's appendix, Eq. 28 is not proportional to Eq. 29). All numbers here are means over items, as in
the paper's figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from calibrant.diagnostics.batches import each_batch
from calibrant.diagnostics.curvature import Curvature
from calibrant.ensembles.inputs import unpack
from calibrant.ensembles.pep import PEP
from calibrant.ensembles.perturbation import Where, select
from calibrant.ensembles.sigma import sigma_curve
from calibrant.functional.trace import Trace, exact, hutchinson


@dataclass(frozen=True)
class PEPEffect:
    """The sums ΔL and tr F̃ over `items`; `measured` has the gain that sampling found at each σ."""

    laplacian: Trace
    fisher: Trace
    items: int
    measured: tuple[tuple[float, float], ...] = ()  # (σ, mean gain in log-likelihood)

    def predict(self, sigma: float) -> float:
        """Return the predicted mean gain per item, B_σ / N (Eq. 20)."""
        return sigma**2 / 2 * (self.laplacian.value + self.fisher.value) / self.items

    def standard_error(self, sigma: float) -> float:
        """Return the standard error of `predict(sigma)`, from the random vectors of the traces."""
        noise = math.hypot(self.laplacian.standard_error, self.fisher.standard_error)
        return sigma**2 / 2 * noise / self.items


def pep_effect(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    where: Where = "auto",
    probes: int = 32,
    sigmas: Sequence[float] = (),
    members: int = 20,
    seed: int = 0,
) -> PEPEffect:
    """The curvature terms of PEP's effect on `batches`, and the measured gain at each of `sigmas`.

    `probes` is the number of random vectors of each trace. `probes=0` computes both traces exactly, with one product
    per parameter: for small networks only.
    """
    pairs = list(each_batch(batches))
    rng = torch.Generator().manual_seed(seed)

    def trace(kind: str, factor: int) -> Trace:
        matrix = Curvature(model, pairs, kind=kind, parameters=select(model, where), dropout=False)
        mean = hutchinson(matrix, probes, rng) if probes else exact(matrix)
        return Trace(factor * matrix.items * mean.value, matrix.items * mean.standard_error, mean.probes)

    laplacian, fisher = trace("hessian", -1), trace("fisher", 1)  # the loss is −L/N
    curve = sigma_curve(PEP(model, 0.0, members, where=where, seed=seed, antithetic=True), pairs)
    zero = curve.at(0.0).log_likelihood
    gains = tuple((s, curve.at(s).log_likelihood - zero) for s in sigmas)
    return PEPEffect(laplacian, fisher, sum(len(unpack(batch)[2]) for batch in pairs), gains)
