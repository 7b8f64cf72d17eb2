"""Optimal ECE over the epochs of a training (RC §5.1, Fig. 4): the ECE that the best temperature leaves.

    optimal ECE = min over T of ECE(z / T),   T and ECE on the same items

It is a lower bound for temperature scaling (RC), not an estimate, because T is chosen on the items that it is judged
on. RC chooses T on test, an *oracle* choice. If the optimal ECE rises while the ECE falls, training destroys what a
temperature could have used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.binning import bin_sums, equal_width
from calibrant.functional.pooling import pool
from calibrant.metrics.conventions import BINS
from calibrant.types import Predictions, Split

TEMPERATURES = torch.logspace(-3, 3, 97, base=2.0, dtype=torch.float64)
"""1/8 … 8 in steps of 4.4%, including 1."""


@dataclass(frozen=True)
class EpochECE:
    """One epoch: its ECE, the least ECE that any temperature gives, and that temperature."""

    epoch: int
    ece: float
    optimal_ece: float
    temperature: float
    oracle: bool  # the temperature was chosen on the test part


def optimal_ece(predictions: Mapping[int, Predictions], *, bins: int = BINS) -> list[EpochECE]:
    """ECE, and the least ECE that any temperature gives, epoch by epoch.

    `predictions` are {epoch: predictions} for one part of the data; members are pooled first.
    """
    if not predictions:
        raise InputError("there are no epochs; train with --keep-epochs, or pass {epoch: predictions}")
    rows = []
    for epoch in sorted(predictions):
        p = predictions[epoch]
        if p.logits is None:
            raise InputError(f"epoch {epoch}: these predictions have no logits, so no temperature can be tried")
        logits = (pool(p.logits) if p.logits.ndim == 3 else p.logits).double()
        eces = _eces(logits, p.labels.to(logits.device), bins)
        best = min(range(len(eces)), key=eces.__getitem__)
        at_one = eces[len(eces) // 2]
        rows.append(EpochECE(epoch, at_one, eces[best], float(TEMPERATURES[best]), p.split is Split.TEST))
    return rows


def _eces(logits: Tensor, labels: Tensor, bins: int) -> list[float]:
    """Return the ECE at each temperature; no temperature changes the predicted class."""
    top, predicted = logits.max(-1)
    below, correct = logits - top[:, None], predicted == labels
    out = []
    for t in TEMPERATURES.tolist():
        confidence = 1 / (below / t).exp().sum(-1)
        sums = bin_sums(equal_width(confidence, bins), bins, confidence, correct)
        out.append(float(sums.gap.abs().sum()))
    return out
