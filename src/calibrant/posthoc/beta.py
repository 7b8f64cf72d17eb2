"""Beta calibration: q = σ(a ln p − b ln(1 − p) + c), a, b ≥ 0 (Kull, Silva Filho and Flach 2017, Eq. 6).

This is the log-likelihood ratio of two beta distributions. Unlike Platt's family it contains the identity (a = b = 1, c
= 0). It is fitted in the same way (`platt.py`), to every class against the rest or to the predicted label alone. The
bounds are exact: if the free minimum of a convex function breaks a bound, its minimum within the bounds lies on a face,
so every face is tried and the best one within the bounds is taken.

Differs from the paper: a weak prior, `ridge` · |(a, b, c) − (1, 1, 0)|² on the *summed* loss, worth about one
item, without which a class that is separable or absent has no finite answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.functional.binary_logistic import fit_columns
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.one_vs_rest import Columns, joined, odds, top_odds
from calibrant.posthoc.platt import Platt
from calibrant.posthoc.toplabel import Top, TopLabelMap

IDENTITY = (1.0, 1.0, 0.0)
FACES = ((True, True), (True, False), (False, True), (False, False))
"""Which of a, b are free; the others are 0."""


@dataclass(frozen=True, eq=False)
class BetaMap(FittedMap):
    """σ(a_k ln p_k − b_k ln(1 − p_k) + c_k), normalised over k."""

    a: Tensor
    b: Tensor
    c: Tensor
    method: ClassVar[str] = "beta"
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int | None:
        return len(self.a)

    def transform(self, logits: Tensor) -> Tensor:
        o = odds(logits)
        return joined(torch.nn.functional.logsigmoid(self.a * o.log_p - self.b * o.log_rest + self.c), logits)


@dataclass(frozen=True, eq=False)
class BetaTopMap(TopLabelMap):
    """σ(a ln p − b ln(1 − p) + c) of the predicted label."""

    a: Tensor
    b: Tensor
    c: Tensor
    method: ClassVar[str] = "beta_top"

    def confidence(self, top: Top) -> Tensor:
        o = top_odds(top)
        return torch.sigmoid(self.a * o.log_p - self.b * o.log_rest + self.c)


@dataclass(frozen=True)
class Beta(Platt):
    """Beta calibration, one-vs-rest or of the predicted label (Kull 2017).

    `kind` is "one_vs_rest" or "top". By default it is one_vs_rest if there are logits.
    """

    ridge: float = 0.5
    name: ClassVar[str] = "beta"
    map: ClassVar[type[FittedMap]] = BetaMap
    maps: ClassVar[tuple[type[FittedMap], ...]] = (BetaTopMap,)
    objective: ClassVar[str] = "nll"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.ridge > 0, "ridge", "must be positive, or a separable class has no finite answer")

    def parameters(self, columns: Columns) -> tuple[Tensor, float]:
        return beta(columns, self.ridge)


def beta(columns: Columns, ridge: float) -> tuple[Tensor, float]:
    """(a, b, c) of each column, [C, 3], and the largest Newton decrement that is left."""
    o, positive, counted = columns
    features = (o.log_p * counted, -o.log_rest * counted, counted)
    weights = torch.full((3,), ridge, dtype=torch.float64)
    centre = torch.tensor(IDENTITY, dtype=torch.float64)
    fits = fit_columns(features, positive, weights, centre)
    theta, worst = fits.theta.clone(), fits.decrement
    broken = ((theta[:, :2] < 0).any(1)).nonzero()[:, 0]
    if len(broken):
        few = tuple(f[:, broken] for f in features)
        best = torch.full((len(broken),), torch.inf, dtype=torch.float64)
        chosen = torch.zeros(len(broken), 3, dtype=torch.float64)
        for face in FACES:
            free = torch.tensor((*face, True)).expand(len(broken), 3)
            start = torch.where(free, centre, 0.0)
            fits = fit_columns(few, positive[:, broken], weights, centre, start=start, free=free)
            better = (fits.theta[:, :2] >= 0).all(1) & (fits.value < best)
            best = torch.where(better, fits.value, best)
            chosen = torch.where(better[:, None], fits.theta, chosen)
            worst = max(worst, fits.decrement)
        theta[broken] = chosen
    return theta, worst
