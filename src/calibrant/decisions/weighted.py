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

from calibrant.decisions.choose import behind_map
from calibrant.decisions.conformal import scorer
from calibrant.decisions.rule import Decisions, probability
from calibrant.errors import InputError, warn
from calibrant.functional.inputs import predictions as checked
from calibrant.functional.tensors import as_tensor
from calibrant.posthoc.map import FittedMap
from calibrant.types import Predictions


class WeightedSets:
    """`WeightedSets(predictions, labels, weights=w, coverage=0.9)(logits, weights=v) -> Decisions`."""

    def __init__(
        self,
        predictions: Any,
        labels: Any = None,
        *,
        weights: Any,
        coverage: float = 0.9,
        method: str = "lac",
        penalty: float | None = None,
        k_reg: int | None = None,
        map: FittedMap | None = None,
    ) -> None:
        p = calibration(predictions, labels, map)
        w = positive(weights, p.n)
        self.coverage = probability("coverage", coverage)
        self.map, self.k, self.scorer = map, p.k, scorer(p, method, penalty=penalty, k_reg=k_reg)
        own, _ = self.scorer.of_labels(p)
        self.scores, order = own.sort()
        self.mass = w[order].cumsum(0)
        effective = float(w.sum() ** 2 / (w**2).sum())
        if effective < 1 / (1 - self.coverage):
            warn(
                f"these weights leave {effective:.1f} of {p.n:,} items, too few for a coverage of {coverage:g}: many "
                "sets will hold every class"
            )

    def __call__(self, logits: Any, *, weights: Any) -> Decisions:
        p = unlabelled(logits, self.k, self.map)
        w = positive(weights, p.n)
        at = torch.searchsorted(self.mass, self.coverage * (self.mass[-1] + w) * (1 - 1e-12))
        q = torch.cat([self.scores, self.scores.new_tensor([torch.inf])])[at]
        return self.scorer.up_to(p, q[:, None], torch.ones(1, 1)).without(p.logits.isnan().any(-1).cpu())  # type: ignore[union-attr]


def positive(weights: Any, n: int) -> Tensor:
    w = as_tensor(weights, "weights").double().cpu()
    if w.shape != (n,):
        raise InputError(f"weights have shape {tuple(w.shape)}; give one for each of the {n} items")
    if not bool(((w > 0) & w.isfinite()).all()):
        raise InputError("weights must be finite and above 0; leave out items that cannot appear")
    return w


def calibration(predictions: Any, labels: Any, map: FittedMap | None) -> Predictions:
    """Return the calibration items after the map, which must not have been fitted on them."""
    p = predictions if isinstance(predictions, Predictions) else checked(predictions, labels)
    if p.group is not None:
        raise InputError(
            f"{p.source + ': ' if p.source else ''}calibration items come in groups, and sets under shift count items "
            "as independent; give one item of each group, without `group`"
        )
    return behind_map(p, map, allow_reuse=False)[0]


def unlabelled(logits: Any, k: int | None, map: FittedMap | None) -> Predictions:
    """Return items without labels, after the map."""
    z = logits if isinstance(logits, Tensor) else as_tensor(logits, "logits")
    if z.ndim != 2 or z.shape[1] != k:
        raise InputError(f"logits have shape {tuple(z.shape)}; give [N, {k}], as at the calibration")
    p = Predictions(torch.zeros(len(z), dtype=torch.long, device=z.device), z, origin="applied")
    return p if map is None else map.predictions(p)
