"""Vector scaling (Guo 2017): z'_k = w_k z_k + b_k, the least NLL, convex in (w, b).

In units of the temperature solution, z̃ = z/T* and w = v/T*, the fit minimises

    mean_n [log Σ_k exp(v_k z̃_k + b_k) − v_y z̃_y − b_y] + ridge/(2N) · (‖v − 1‖² + ‖b‖²).

The effect of the ridge is far below noise. It gives an optimum to classes that are separable or never occur, and fixes
the constant that can be added to every b. If temperature itself has no optimum (separable), T* = 1 and the pull is
towards the identity. Newton's method solves it (`functional/multinomial.py`) and gives the certificate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.functional.designs import Diagonal
from calibrant.functional.multinomial import minimise
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap, still_impossible
from calibrant.posthoc.shrinkage import anchor, possible_items
from calibrant.types import Predictions

IMPOSSIBLE = -1e3
"""During the fit, a logit of −inf counts as this far below the smallest finite one of its row, in units of T*."""


@dataclass(frozen=True, eq=False)
class VectorMap(FittedMap):
    """w ∘ z + b; an impossible class stays impossible, whatever the sign of its weight."""

    weight: Tensor
    bias: Tensor
    method: ClassVar[str] = "vector"
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int:
        return len(self.weight)

    def transform(self, logits: Tensor) -> Tensor:
        return still_impossible(logits * self.weight + self.bias, logits)


@dataclass(frozen=True)
class Vector(Calibrator):
    """Vector scaling: a weight and a bias for each class (Guo 2017)."""

    ridge: float = 1e-4
    name: ClassVar[str] = "vector"
    map: ClassVar[type[FittedMap]] = VectorMap
    cost: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.ridge > 0, "ridge", "must be positive, or separable data have no optimum")

    def solve(self, p: Predictions) -> FittedMap:
        z, y = possible_items(p)
        T = float(anchor(z, y))
        z = z / T
        gone = torch.isneginf(z)
        z = torch.where(gone, z.masked_fill(gone, torch.inf).amin(1, keepdim=True) + IMPOSSIBLE, z)
        k = z.shape[1]
        centre = torch.cat([torch.ones(k), torch.zeros(k)]).double()
        ridge = torch.full((2 * k,), self.ridge / (2 * len(z)), dtype=torch.float64)
        found = minimise(Diagonal(z), y, ridge, centre)
        record = certified({"ridge": self.ridge, "anchor_T": T, **found.certificate()})
        return VectorMap(found.theta[:k] / T, found.theta[k:].clone(), record=record)
