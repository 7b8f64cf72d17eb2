"""Prediction sets under a covariate shift that is known: weighted conformal prediction (Tibshirani 2019).

New items come from another distribution of inputs, with the same labels given the input. w(x), up to a factor, says how
much more often an input like x appears there. For an item of weight w, q is the smallest score with

    sum of w_i over calibration items with s_i ≤ q  ≥  coverage · (sum of all w_i + w),

or infinite if there is none. Its set holds the classes with a score of at most q. It contains the truth with
probability `coverage` or more under the new distribution. Equal weights give the sets of `set_coverage`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calibrant.decisions.rule import Decisions
from calibrant.decisions.shifted import ShiftedSets
from calibrant.errors import InputError, warn
from calibrant.functional.tensors import as_tensor


class WeightedSets(ShiftedSets):
    """`WeightedSets(predictions, labels, weights=w, coverage=0.9)(logits, weights=v) -> Decisions`."""

    def __init__(self, predictions: Any, labels: Any = None, *, weights: Any, **settings: Any) -> None:
        super().__init__(predictions, labels, **settings)
        w = positive(weights, self.n)
        self.score, order = self.score.sort()
        self.mass = w[order].cumsum(0)
        effective = float(w.sum() ** 2 / (w**2).sum())
        if effective < 1 / (1 - self.coverage):
            warn(
                f"these weights leave {effective:.1f} of {self.n:,} items, too few for a coverage of "
                f"{self.coverage:g}: many sets will hold every class"
            )

    def __call__(self, logits: Any, *, weights: Any) -> Decisions:
        w = positive(weights, len(logits))
        at = torch.searchsorted(self.mass, self.coverage * (self.mass[-1] + w) * (1 - 1e-12))
        q = torch.cat([self.score, self.score.new_tensor([torch.inf])])[at]
        return self.up_to(logits, q[:, None])


def positive(weights: Any, n: int) -> Tensor:
    """The weights of n items, checked."""
    w = as_tensor(weights, "weights").double().cpu()
    if w.shape != (n,):
        raise InputError(f"weights have shape {tuple(w.shape)}; give one for each of the {n} items")
    if not bool(((w > 0) & w.isfinite()).all()):
        raise InputError("weights must be finite and above 0; leave out items that cannot appear")
    return w
