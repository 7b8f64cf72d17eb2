"""Beta calibration: q = σ(a ln p − b ln(1 − p) + c), a, b ≥ 0 (Kull, Silva Filho and Flach 2017, Eq. 6).

The log-likelihood ratio of two beta distributions, so the identity (a = b = 1, c = 0) is inside the family, unlike
in Platt's. Each class against the rest, then normalised, or of the predicted label alone (`kind="top"`), all that a
top-1 file can be fitted with. The bounds are exact: a convex function whose free minimum
breaks a bound has its minimum on a face, so every face is tried and the best that keeps the bounds is taken.

Differs from the paper: a weak prior, `ridge` · |(a, b, c) − (1, 1, 0)|² on the *summed* loss, about one item's
worth, without which a class that is separable or absent has no finite answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.functional.binary_logistic import fit_columns
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.one_vs_rest import Kind, Odds, binary_problems, joined, kind_of, odds, top_odds
from calibrant.posthoc.toplabel import Top, TopLabelMap, least
from calibrant.types import Predictions

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
class Beta(Calibrator):
    """Beta calibration, one-vs-rest or of the predicted label (Kull 2017).

    `kind` is "one_vs_rest" or "top"; without it, one_vs_rest wherever there are logits.
    """

    ridge: float = 0.5
    kind: Kind | None = None
    name: ClassVar[str] = "beta"
    map: ClassVar[type[FittedMap]] = BetaMap
    maps: ClassVar[tuple[type[FittedMap], ...]] = (BetaTopMap,)
    takes_top1: ClassVar[bool] = True
    cost: ClassVar[int] = 2
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"kind": "top"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.ridge > 0, "ridge", "must be positive, or a separable class has no finite answer")

    def solve(self, p: Predictions) -> FittedMap:
        kind = kind_of(self.kind, p, self.name)
        fits = [beta(part, happened, self.ridge) for part, happened in binary_problems(p, kind)]
        theta, worst = torch.cat([t for t, _ in fits]), max(decrement for _, decrement in fits)
        event = "predicted label" if kind == "top" else "one-vs-rest"
        record = certified({"objective": f"nll, {event}", "decrement": worst})
        if kind == "top":
            return BetaTopMap(*(t.clone() for t in theta[0]), floor=least(p.n), record=record)
        return BetaMap(*(t.contiguous() for t in theta.unbind(1)), record=record)


def beta(o: Odds, positive: Tensor, ridge: float) -> tuple[Tensor, float]:
    """(a, b, c) per column [C, 3] and the largest Newton decrement left."""
    features = (o.log_p, -o.log_rest, torch.ones_like(o.log_p))
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
