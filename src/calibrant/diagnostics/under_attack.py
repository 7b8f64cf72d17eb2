"""The answers that survive an attack, item by item (SS App. E, Table E.2 and Fig. E.3).

    accuracy under attack = share of items that are right before and after,   success rate = 1 − acc_adv / acc_clean

The success rate is the share of right answers that the attack makes wrong (the paper's rows fit this). Intervals are
Wilson's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.attacks import Attack
from calibrant.diagnostics.batches import each_batch
from calibrant.ensembles.inputs import unpack
from calibrant.ensembles.prediction import predict
from calibrant.functional.binomial import wilson
from calibrant.functional.pooling import pool
from calibrant.types import Estimate


@dataclass(frozen=True, eq=False)
class UnderAttack:
    """Each item's answer before and after the attack. An item that was wrong before counts as wrong."""

    right: Tensor  # [N] bool
    survived: Tensor  # [N] bool: right, and still right under attack

    def accuracy(self) -> Estimate:
        return _share(int(self.right.sum()), len(self.right))

    def accuracy_under_attack(self) -> Estimate:
        return _share(int(self.survived.sum()), len(self.right))

    def success_rate(self) -> Estimate:
        n = int(self.right.sum())
        if n == 0:
            return Estimate(None, reason="no item is right, so there is nothing to attack")
        return _share(n - int(self.survived.sum()), n)


def under_attack(predictor: Any, batches: Iterable[Any], attack: Attack) -> UnderAttack:
    """Attack every item and return which answers survive; an ensemble is attacked through its pooled prediction.

    The attack's bounds say how the inputs were normalised (`Bounds(mean=, std=)`).
    """
    right, survived = [], []
    for batch in each_batch(batches):
        (x,), _, y, _ = unpack(batch)
        before = _correct(predictor, x, y)
        after = _correct(predictor, attack(predictor, x, y), y)
        right.append(before)
        survived.append(before & after)
    return UnderAttack(torch.cat(right), torch.cat(survived))


def _correct(predictor: Any, x: Tensor, y: Tensor) -> Tensor:
    found = predict(predictor, [(x, y)])
    assert found.logits is not None
    logits = pool(found.logits) if found.logits.ndim == 3 else found.logits
    return logits.argmax(-1) == found.labels


def _share(hits: int, n: int) -> Estimate:
    low, high = wilson(hits, n)
    return Estimate(hits / n, float(low), float(high), method="Wilson")
