"""Prediction sets for a stream that drifts: adaptive conformal inference (Gibbs & Candès 2021).

If items are no longer drawn like those of the calibration, no fixed quantile keeps its coverage. Here the quantile
moves: the set of the next item is made for a coverage of `level`, and once its truth is known

    level ← level + step · (1 if the set missed, else 0) − step · (1 − coverage).

Whatever the stream does, even if an opponent chooses it, the share of misses in T items differs from 1 − coverage by at
most (max(coverage, 1 − coverage) + step · B) / (step · T), where B is the largest number of items that wait for their
truth (1 if `update` is called after every item). A larger step follows faster, and its sets change more.
"""

from __future__ import annotations

from typing import Any

import torch

from calibrant.decisions.quantile import quantile
from calibrant.decisions.rule import Decisions, probability
from calibrant.decisions.shifted import ShiftedSets
from calibrant.errors import InputError
from calibrant.functional.tensors import as_tensor


class AdaptiveSets(ShiftedSets):
    """`sets = AdaptiveSets(predictions, labels, coverage=0.9)`, then `d = sets(logits)` for each item, and
    `sets.update(d, labels)` when its truth is known. The items of one call share the level. Labels may come late.
    """

    def __init__(self, predictions: Any, labels: Any = None, *, step: float = 0.02, **settings: Any) -> None:
        super().__init__(predictions, labels, **settings)
        self.level, self.step = self.coverage, probability("step", step)

    def __call__(self, logits: Any) -> Decisions:
        q = -torch.inf if self.level <= 0 else torch.inf  # sets of no class, or of every class
        if 0 < self.level < 1:
            q, _ = quantile(self.score.numpy(), self.chance.numpy(), self.level, None)
        return self.up_to(logits, torch.full((1, 1), q, dtype=torch.float64))

    def update(self, decisions: Decisions, labels: Any) -> None:
        """Learn from the true labels of decided items."""
        y = as_tensor(labels, "labels").long().cpu()
        if decisions.sets is None or y.shape != (len(decisions.sets),):
            raise InputError(f"labels have shape {tuple(y.shape)}; give one for each item of the decisions")
        if bool(((y < 0) | (y >= decisions.sets.shape[1])).any()):
            raise InputError(f"labels must be classes from 0 to {decisions.sets.shape[1] - 1}")
        missed = ~decisions.sets.gather(1, y[:, None])[:, 0]
        self.level += self.step * (float(missed.sum()) - (1 - self.coverage) * len(y))
