"""Prediction sets for items that are not drawn like those of the calibration.

`WeightedSets` (Tibshirani 2019): the inputs come from another distribution, with the same labels given the input. w(x),
up to a factor, says how much more often an input like x appears there. For an item of weight w, q is the smallest score
with

    sum of w_i over calibration items with s_i ≤ q  ≥  coverage · (sum of all w_i + w),

or infinite if there is none. Its set holds the classes with a score of at most q. It contains the truth with
probability `coverage` or more under the new distribution. Equal weights give the sets of `set_coverage`.

`AdaptiveSets` (Gibbs & Candès 2021): if a stream drifts, no fixed quantile keeps its coverage, so the quantile moves.
The set of the next item is made for a coverage of `level`, and once its truth is known

    level ← level + step · (1 if the set missed, else 0) − step · (1 − coverage).

Whatever the stream does, even if an opponent chooses it, the share of misses in T items differs from 1 − coverage by at
most (max(coverage, 1 − coverage) + step · B) / (step · T), where B is the largest number of items that wait for their
truth (1 if `update` is called after every item). A larger step follows faster, and its sets change more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from calibrant.decisions.choose import after_map
from calibrant.decisions.conformal import scorer
from calibrant.decisions.quantile import quantile
from calibrant.decisions.rule import Decisions, probability
from calibrant.errors import InputError, warn
from calibrant.functional.inputs import predictions as checked
from calibrant.functional.tensors import as_tensor
from calibrant.posthoc.map import FittedMap
from calibrant.types import Predictions


class ShiftedSets:
    """Abstract: it holds the calibration scores; a subclass chooses the quantile for each call and calls `up_to`.

    The calibration items must not be those that `map` was fitted on. `method`, `penalty` and `k_reg` are as in
    `calibrant.decide(…, set_coverage=…)`.
    """

    def __init__(
        self,
        predictions: Any,
        labels: Any = None,
        *,
        coverage: float = 0.9,
        method: str = "lac",
        penalty: float | None = None,
        k_reg: int | None = None,
        map: FittedMap | None = None,
    ) -> None:
        p = predictions if isinstance(predictions, Predictions) else checked(predictions, labels)
        if p.group is not None:
            raise InputError(
                f"{p.source + ': ' if p.source else ''}calibration items come in groups, and sets under shift count "
                "items as independent; give one item of each group, without `group`"
            )
        p, _ = after_map(p, map, allow_reuse=False)
        self.coverage = probability("coverage", coverage)
        self.map, self.n, self.k = map, p.n, p.k
        self.scorer = scorer(p, method, penalty=penalty, k_reg=k_reg)
        self.score, self.chance = self.scorer.of_labels(p)

    def up_to(self, logits: Any, quantile: Tensor) -> Decisions:
        """The sets for logits [N, K], with one quantile [1, 1] or one per item [N, 1]."""
        z = logits if isinstance(logits, Tensor) else as_tensor(logits, "logits")
        if z.ndim != 2 or z.shape[1] != self.k:
            raise InputError(f"logits have shape {tuple(z.shape)}; give [N, {self.k}], as at the calibration")
        p = Predictions(torch.zeros(len(z), dtype=torch.long, device=z.device), z, origin="applied")
        p = p if self.map is None else self.map.predictions(p)
        return self.scorer.up_to(p, quantile, torch.ones(1, 1)).without(z.isnan().any(-1).cpu())


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
