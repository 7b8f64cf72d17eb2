"""TrustScore (Jiang 2018, Alg. 1–2; DS §3.2): how much nearer is the predicted class than any other class?

1. For each class c keep the α-high-density set H_c: its calibration items without the share α whose k-th nearest
   neighbour in the class is farthest. (α = 0 keeps all.)
2. The score of an item with features f and predicted class a is

       s = min_{c≠a} d(f, H_c) / d(f, H_a),        d = Euclidean distance to the nearest point.

The score is a ranking in [0, ∞], not a probability. A monotone function turns it into a confidence in [0, 1],

       confidence = σ(a ln s + b),      which is s/(1 + s) for a = 1, b = 0 (`link="plain"`).

`link="platt"`, the default, fits a > 0 and b to whether the prediction was right. It uses *leave-one-out* scores of the
calibration items, because each item would find itself at distance 0. Two distances of 0 give s = 1. A predicted class
without calibration items is infinitely far away, s = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.posthoc.calibrator import certified
from calibrant.posthoc.confidence_model import ConfidenceMap, ConfidenceModel, features_of
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.platt import platt
from calibrant.posthoc.toplabel import top_of
from calibrant.types import Predictions

FARTHEST = 50.0
"""|ln s| is clipped here; a score of 0 or ∞ counts as this."""


@dataclass(frozen=True, eq=False)
class TrustScoreMap(ConfidenceMap):
    """The points of the high-density sets, the class of each, and the link σ(a ln s + b)."""

    points: Tensor
    owner: Tensor
    a: Tensor
    b: Tensor
    method: ClassVar[str] = "trust_score"

    @property
    def width(self) -> int:
        return int(self.points.shape[1])

    @property
    def degrees(self) -> int:
        return 2  # the points are data, not parameters

    def score(self, features: Tensor, predicted: Tensor) -> Tensor:
        """ln s of each item."""
        own, other = distances(features, predicted, self.points, self.owner)
        return log_ratio(other, own)

    def confidence(self, features: Tensor, predicted: Tensor, logits: Tensor | None = None) -> Tensor:
        return torch.sigmoid(self.a * self.score(features, predicted) + self.b)

    def summary(self) -> dict[str, Any]:
        return {"points": len(self.points), "a": float(self.a), "b": float(self.b)}


@dataclass(frozen=True)
class TrustScore(ConfidenceModel):
    """Distance to the nearest other class, divided by that to the predicted class (Jiang 2018).

    `alpha` is the share of each class that is left out, by the distance to the `neighbours`-th neighbour.
    """

    alpha: float = 0.0
    neighbours: int = 10
    link: Literal["platt", "plain"] = "platt"
    name: ClassVar[str] = "trust_score"
    map: ClassVar[type[FittedMap]] = TrustScoreMap

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.alpha < 1, "alpha", "must lie in [0, 1): it is the share filtered away")
        self.require(self.neighbours >= 1, "neighbours", "must be at least 1")

    def solve(self, p: Predictions) -> FittedMap:
        self.need(p.n, 2, "an item is judged by its neighbours")
        x, y = features_of(p, self.name), p.labels.cpu()
        if len(torch.unique(y)) < 2:
            raise InputError("trust_score compares classes, but all calibration labels are the same; give more items")
        dense = high_density(x, y, self.alpha, self.neighbours)
        certificate: dict[str, Any] = {"points": int(dense.sum()), "filtered": int((~dense).sum()), "link": self.link}
        a, b = 1.0, 0.0
        if self.link == "platt":
            predicted = top_of(p).predicted.cpu()
            own, other = distances(x, predicted, x[dense], y[dense], torch.where(dense, torch.cumsum(dense, 0) - 1, -1))
            theta, decrement = platt(log_ratio(other, own)[:, None], (predicted == y).double()[:, None])
            a, b = theta[0].tolist()
            certificate |= {"scores": "leave-one-out", "decrement": decrement}
            if not a > 0:
                reason = f"errors have the higher scores (slope {a:.3g}), so s/(1 + s) was kept"
                certificate |= {"bound": "a", "reason": reason}
                a, b = 1.0, 0.0
        link = (torch.tensor(v, dtype=torch.float64) for v in (a, b))
        return TrustScoreMap(x[dense].clone(), y[dense].clone(), *link, record=certified(certificate))


def high_density(x: Tensor, y: Tensor, alpha: float, neighbours: int) -> Tensor:
    """Whether each item is in the set H of its class (Alg. 1), [N]. A class never loses its last item."""
    kept = torch.ones(len(x), dtype=torch.bool)
    if alpha == 0:
        return kept
    for c in torch.unique(y).tolist():
        rows = (y == c).nonzero()[:, 0]
        drop = min(math.floor(alpha * len(rows)), len(rows) - 1)
        if drop:
            reach = nearest(x[rows], x[rows], min(neighbours + 1, len(rows)))[0][:, -1]  # the item itself comes first
            kept[rows[torch.argsort(reach, stable=True)[len(rows) - drop :]]] = False
    return kept


def distances(
    x: Tensor, predicted: Tensor, points: Tensor, owner: Tensor, itself: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The distances to the predicted class and to the nearest other, [N] each. Item n skips the point `itself[n]`."""
    own = torch.full((len(x),), torch.inf, dtype=torch.float64)
    other = own.clone()
    for c in torch.unique(owner).tolist():
        members = (owner == c).nonzero()[:, 0]
        away, which = nearest(x, points[members], min(2, len(members)))
        first = away[:, 0]
        if itself is not None:
            found = members[which[:, 0]] == itself
            second = away[:, 1] if away.shape[1] > 1 else torch.full_like(first, torch.inf)
            # of two equal points either may come first, but then the second is at the same distance
            first = torch.where(found, second, first)
        mine = predicted == c
        own = torch.where(mine, first, own)
        other = torch.where(mine, other, torch.minimum(other, first))
    return own, other


def nearest(x: Tensor, points: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The distances and indices of the `count` nearest points of each row, nearest first."""
    from sklearn.neighbors import NearestNeighbors

    found = NearestNeighbors(n_neighbors=count, n_jobs=1).fit(points.numpy())
    away, which = found.kneighbors(x.numpy())
    return torch.from_numpy(away), torch.from_numpy(which)


def log_ratio(other: Tensor, own: Tensor) -> Tensor:
    """ln(other / own), clipped at ±FARTHEST; 0/0 and ∞/∞ count as ratio 1."""
    ratio = torch.log(other) - torch.log(own)
    return torch.nan_to_num(ratio, nan=0.0, posinf=FARTHEST, neginf=-FARTHEST).clamp(-FARTHEST, FARTHEST)
