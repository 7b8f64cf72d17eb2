"""What PEP does to each item: the change of p(true), answers corrected and spoiled (PEP Fig. 2c), and who pays for it.

    gain_i = ln (1/m) Σ_j p(y_i; x_i, θ_j) − ln p(y_i; x_i, θ*),      Σ_i gain_i ≈ B_σ, the PEP effect (Eq. 15)

The paper notes under Eq. 15 that items of low likelihood may dominate the effect: `share_of_low` says how far they do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.diagnostics.curvature import several
from calibrant.diagnostics.levels import student
from calibrant.ensembles.pep import PEP
from calibrant.ensembles.single import predict
from calibrant.errors import InputError
from calibrant.functional.pooling import pool
from calibrant.types import Estimate


@dataclass(frozen=True, eq=False)
class PEPItems:
    """Per item: log p of the label by the model, by each member and by PEP; classes predicted before and after."""

    baseline: Tensor  # [N] ln p(true)
    members: Tensor  # [M, N] ln p(true)
    pooled: Tensor  # [N] ln p(true)
    before: Tensor  # [N] predicted class
    after: Tensor  # [N] predicted class
    labels: Tensor  # [N]

    @property
    def gain(self) -> Tensor:
        """Change of ln p(true)."""
        return self.pooled - self.baseline

    @property
    def corrected(self) -> Tensor:
        """Places of items that PEP corrects, the largest change of p(true) first."""
        return self._where((self.before != self.labels) & (self.after == self.labels), 1)

    @property
    def spoiled(self) -> Tensor:
        """Places of items that PEP spoils, the largest loss of p(true) first."""
        return self._where((self.before == self.labels) & (self.after != self.labels), -1)

    def _where(self, mask: Tensor, sign: int) -> Tensor:
        change = sign * (self.pooled.exp() - self.baseline.exp())
        found = mask.nonzero()[:, 0]
        return found[change[found].argsort(descending=True, stable=True)]

    def effect(self) -> Estimate:
        """Mean gain over items, with its 95% interval."""
        within = (float("-inf"), float("inf"))
        return student(self.gain.tolist(), "Student's t over items", within)

    def share_of_low(self, share: float = 0.1) -> float | None:
        """How much of the total gain comes from the `share` of items that the model gives the lowest likelihood.

        None where PEP gains nothing. Above 1: the other items lose.
        """
        total = float(self.gain.sum())
        if not 0 < share <= 1:
            raise InputError(f"share={share} must be in (0, 1]")
        if total <= 0:
            return None
        low = self.baseline.argsort(stable=True)[: max(1, round(share * len(self.baseline)))]
        return float(self.gain[low].sum()) / total


def pep_items(pep: PEP, batches: Iterable[Any]) -> PEPItems:
    """The effect of PEP on every item: change of p(true), answers corrected and spoiled, members one by one."""
    pairs = list(several(batches))
    plain = predict(pep.model, pairs, device=pep.home)
    perturbed = pep.predict(pairs, keep_members=True)
    assert plain.logits is not None and perturbed.logits is not None
    # with σ = 0 every member is the model, and pooling would leave nothing but rounding
    labels, together = plain.labels, pool(perturbed.logits.double()) if pep.sigma else plain.logits

    def of_label(logits: Tensor) -> Tensor:
        log_p = torch.log_softmax(logits.double(), -1)
        return log_p.gather(-1, labels[:, None].expand(*log_p.shape[:-1], 1))[..., 0]

    return PEPItems(
        of_label(plain.logits),
        of_label(perturbed.logits),
        of_label(together),
        plain.logits.argmax(-1),
        together.argmax(-1),
        labels,
    )
