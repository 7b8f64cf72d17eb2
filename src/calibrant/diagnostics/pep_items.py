"""The effect of PEP on each item: the change of p(true), and the answers that it corrects or spoils (PEP Fig. 2c).

    gain_i = ln (1/m) Σ_j p(y_i; x_i, θ_j) − ln p(y_i; x_i, θ*),      Σ_i gain_i ≈ B_σ, the PEP effect (Eq. 15)

The paper notes under Eq. 15 that items of low likelihood may dominate the effect; `share_of_low` is their share.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.diagnostics.batches import each_batch
from calibrant.diagnostics.intervals import UNBOUNDED, student
from calibrant.ensembles.pep import PEP
from calibrant.ensembles.prediction import predict
from calibrant.errors import InputError
from calibrant.functional.pooling import pool
from calibrant.types import Estimate


@dataclass(frozen=True, eq=False)
class PEPItems:
    """For each item, ln p(true) by the network, by each member and by PEP, and the predicted classes."""

    baseline: Tensor  # [N] ln p(true)
    members: Tensor  # [M, N] ln p(true)
    pooled: Tensor  # [N] ln p(true)
    before: Tensor  # [N] class that the network predicts
    after: Tensor  # [N] class that PEP predicts
    labels: Tensor  # [N]

    @property
    def gain(self) -> Tensor:
        """The change of ln p(true)."""
        return self.pooled - self.baseline

    @property
    def corrected(self) -> Tensor:
        """The positions of the items that PEP corrects, the largest gain of p(true) first."""
        return self._where((self.before != self.labels) & (self.after == self.labels), 1)

    @property
    def spoiled(self) -> Tensor:
        """The positions of the items that PEP spoils, the largest loss of p(true) first."""
        return self._where((self.before == self.labels) & (self.after != self.labels), -1)

    def _where(self, mask: Tensor, sign: int) -> Tensor:
        change = sign * (self.pooled.exp() - self.baseline.exp())
        found = mask.nonzero()[:, 0]
        return found[change[found].argsort(descending=True, stable=True)]

    def effect(self) -> Estimate:
        """Return the mean gain over items with its 95% interval."""
        return student(self.gain.tolist(), "Student's t over items", UNBOUNDED)

    def share_of_low(self, share: float = 0.1) -> float | None:
        """Return the part of the total gain that comes from the `share` of items with the lowest likelihood.

        It is None where PEP gains nothing, and above 1 where the other items lose.
        """
        total = float(self.gain.sum())
        if not 0 < share <= 1:
            raise InputError(f"share={share} must be in (0, 1]")
        if total <= 0:
            return None
        low = self.baseline.argsort(stable=True)[: max(1, round(share * len(self.baseline)))]
        return float(self.gain[low].sum()) / total


def pep_items(pep: PEP, batches: Iterable[Any]) -> PEPItems:
    """The effect of PEP on every item: change of p(true), and answers corrected and spoiled."""
    pairs = list(each_batch(batches))
    plain = predict(pep.model, pairs, device=pep.home)
    perturbed = pep.predict(pairs, keep_members=True)
    assert plain.logits is not None and perturbed.logits is not None
    # with σ = 0 every member is the model, and pooling would only add rounding errors
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
