"""Platt scaling: q = σ(a s + b) of the log-odds s, fitted to softened targets (Platt 1999, §2.2).

Each class is fitted against the rest, and the rows are normalised; for two classes this is Platt's own binary map.
`kind="top"` is the binary map of "the predicted label is right", the only one that a top-1 file allows. With N₊
positives and N₋ negatives the targets are t₊ = (N₊ + 1)/(N₊ + 2) and t₋ = 1/(N₋ + 2). They stand for a flat prior on
the outcome of new data, and keep a and b finite for a class that is separable or absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.functional.binary_logistic import fit_columns
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.one_vs_rest import Columns, Kind, binary_problems, joined, kind_of, odds, top_odds
from calibrant.posthoc.toplabel import Top, TopLabelMap, least
from calibrant.types import Predictions

RIDGE = 1e-6
"""It is negligible beside the sum over items, and only picks one solution if all scores of a class are equal."""


@dataclass(frozen=True, eq=False)
class PlattMap(FittedMap):
    """σ(a_k s_k + b_k), normalised over k."""

    a: Tensor
    b: Tensor
    method: ClassVar[str] = "platt"
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int | None:
        return len(self.a)

    def transform(self, logits: Tensor) -> Tensor:
        return joined(torch.nn.functional.logsigmoid(self.a * odds(logits).score + self.b), logits)


@dataclass(frozen=True, eq=False)
class PlattTopMap(TopLabelMap):
    """σ(a s + b) of the predicted label's log-odds."""

    a: Tensor
    b: Tensor
    method: ClassVar[str] = "platt_top"

    def confidence(self, top: Top) -> Tensor:
        return torch.sigmoid(self.a * top_odds(top).score + self.b)


@dataclass(frozen=True)
class Platt(Calibrator):
    """Platt scaling, one-vs-rest or of the predicted label (Platt 1999).

    `kind` is "one_vs_rest" or "top". By default it is one_vs_rest if there are logits.
    """

    kind: Kind | None = None
    name: ClassVar[str] = "platt"
    map: ClassVar[type[FittedMap]] = PlattMap
    maps: ClassVar[tuple[type[FittedMap], ...]] = (PlattTopMap,)
    objective: ClassVar[str] = "nll of softened targets"
    takes_top1: ClassVar[bool] = True
    cost: ClassVar[int] = 2
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"kind": "top"})

    def solve(self, p: Predictions) -> FittedMap:
        kind = kind_of(self.kind, p, self.name)
        fits = [self.parameters(columns) for columns in binary_problems(p, kind)]
        theta, worst = torch.cat([t for t, _ in fits]), max(decrement for _, decrement in fits)
        event = "predicted label" if kind == "top" else "one-vs-rest"
        options: dict[str, Any] = {"record": certified({"objective": f"{self.objective}, {event}", "decrement": worst})}
        if kind == "top":
            options["floor"] = least(p.n)
            return self.maps[0](*(t.clone() for t in theta[0]), **options)
        return self.map(*(t.contiguous() for t in theta.unbind(1)), **options)

    def parameters(self, columns: Columns) -> tuple[Tensor, float]:
        """The parameters of each column, [C, D], and the largest Newton decrement that is left."""
        return platt(columns.odds.score, columns.happened, columns.counted)


def soft_targets(positive: Tensor, counted: Tensor) -> Tensor:
    """Platt's t₊ and t₋ for each column of 0/1 values [N, C]."""
    plus = (positive * counted).sum(0)
    minus = counted.sum(0) - plus
    return torch.where(positive > 0, (plus + 1) / (plus + 2), 1 / (minus + 2))


def platt(score: Tensor, positive: Tensor, counted: Tensor | None = None) -> tuple[Tensor, float]:
    """(a, b) of each column, [C, 2], and the largest Newton decrement that is left."""
    counted = torch.ones_like(score) if counted is None else counted
    ridge = torch.full((2,), RIDGE, dtype=torch.float64)
    centre = torch.tensor([1.0, 0.0], dtype=torch.float64)
    features = (score * counted, counted)  # an entry whose features are all 0 has no influence
    fits = fit_columns(features, soft_targets(positive, counted), ridge, centre)
    return fits.theta, fits.decrement
