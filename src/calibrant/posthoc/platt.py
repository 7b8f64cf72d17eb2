"""Platt scaling: q = σ(a s + b) of the log-odds s, fitted to softened targets (Platt 1999, §2.2).

Each class against the rest, then normalised; for two classes that is Platt's own binary map. With N₊ positives and
N₋ negatives the targets are t₊ = (N₊ + 1)/(N₊ + 2) and t₋ = 1/(N₋ + 2): a flat prior on the outcome beyond the
data, which also keeps a and b finite when a class is separable or absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.functional.binary_logistic import fit_columns
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.one_vs_rest import column_chunks, is_class, joined, odds
from calibrant.types import Predictions

RIDGE = 1e-6
"""Summed over items, so nothing; it only picks one answer when all scores of a class are equal."""


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
        a, b = self.a.to(logits.device), self.b.to(logits.device)
        return joined(torch.nn.functional.logsigmoid(a * odds(logits).score + b), logits)


@dataclass(frozen=True)
class Platt(Calibrator):
    """Platt scaling, one-vs-rest (Platt 1999)."""

    name: ClassVar[str] = "platt"
    map: ClassVar[type[FittedMap]] = PlattMap
    cost: ClassVar[int] = 2

    def solve(self, p: Predictions) -> FittedMap:
        assert p.logits is not None
        score = odds(p.logits.double()).score
        parts, worst = [], 0.0
        for columns in column_chunks(*score.shape):
            theta, decrement = platt(score[:, columns], is_class(p.labels, columns))
            parts.append(theta)
            worst = max(worst, decrement)
        theta = torch.cat(parts)
        certificate: dict[str, Any] = {"objective": "nll of softened targets, one-vs-rest", "decrement": worst}
        return PlattMap(theta[:, 0].contiguous(), theta[:, 1].contiguous(), record=certified(certificate))


def soft_targets(positive: Tensor) -> Tensor:
    """Platt's t₊ and t₋ per column of 0/1 values [N, C]."""
    plus = positive.sum(0)
    minus = len(positive) - plus
    return torch.where(positive > 0, (plus + 1) / (plus + 2), 1 / (minus + 2))


def platt(score: Tensor, positive: Tensor) -> tuple[Tensor, float]:
    """(a, b) per column [C, 2] and the largest Newton decrement left."""
    ones = torch.ones_like(score)
    ridge = torch.full((2,), RIDGE, dtype=torch.float64)
    fits = fit_columns((score, ones), soft_targets(positive), ridge, torch.tensor([1.0, 0.0], dtype=torch.float64))
    return fits.theta, fits.decrement
