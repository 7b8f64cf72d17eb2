"""Isotonic regression (Zadrozny 2002): the non-decreasing function of a probability with the least squared error.

Between two blocks the function is linear, as in scikit-learn; outside it is constant. `kind="top"` maps the confidence
of the predicted class; `kind="one_vs_rest"` maps every class and normalises the rows. Logits never carry exactly 0 or
1: for them, a first block at 0 or a last block at 1 counts half an item of the other kind.

`isotonic_centred` (Oron and Flournoy 2017) has no flat steps. PAVA gives all scores of a block the same value, which
ties them and loses refinement. The centred form replaces a block by one point, its mean score with its value. So the
function increases strictly between the points, and the ranking within a block is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap, still_impossible
from calibrant.posthoc.one_vs_rest import Kind, kind_of, probabilities_and_hits
from calibrant.posthoc.step_functions import Floats, end_to_end, grouped, interpolate, tensors
from calibrant.posthoc.toplabel import Top, TopLabelMap, least
from calibrant.types import Predictions


@dataclass(frozen=True)
class Knots:
    """One non-decreasing function. PAVA makes two knots per block, first and last x. `soft` is y without 0 or 1."""

    x: Floats
    y: Floats
    soft: Floats


def pava(values: Floats, hit: NDArray[np.bool_], centred: bool = False) -> Knots:
    """Isotonic regression of hits on values. With `centred`, a block is one knot, at the mean of its values."""
    from scipy.optimize import isotonic_regression

    value, size, hits = grouped(values, hit)
    fit = isotonic_regression(hits / size, weights=size)
    first, last = fit.blocks[:-1], fit.blocks[1:] - 1
    y, count = fit.x[first], np.add.reduceat(size, first)
    soft = _soften(y, count)
    if centred:
        centre = np.add.reduceat(size * value, first) / count
        return Knots(np.clip(centre, value[first], value[last]), y, soft)
    x = np.stack([value[first], value[last]], 1).reshape(-1)
    return Knots(x, np.repeat(y, 2), np.repeat(soft, 2))


def _soften(y: Floats, count: NDArray[np.int64]) -> Floats:
    soft = y.copy()
    if y[0] == 0:
        soft[0] = least(count[0]) if len(y) == 1 else min(least(count[0]), y[1] / 2)
    if y[-1] == 1:
        soft[-1] = 1 - least(count[-1]) if len(y) == 1 else max(1 - least(count[-1]), (1 + y[-2]) / 2)
    return soft


@dataclass(frozen=True, eq=False)
class IsotonicMap(TopLabelMap):
    """Confidence → isotonic value."""

    x: Tensor
    y: Tensor
    soft_y: Tensor
    method: ClassVar[str] = "isotonic"

    @property
    def degrees(self) -> int:
        return len(self.x) // 2

    def confidence(self, top: Top) -> Tensor:
        return interpolate(top.confidence, self.x, self.y)

    def soft(self, top: Top) -> Tensor:
        return interpolate(top.confidence, self.x, self.soft_y).clamp(self.floor, 1 - self.floor)


@dataclass(frozen=True, eq=False)
class IsotonicRestMap(FittedMap):
    """One function per class: the knots of class c are x[offset_c : offset_{c+1}]."""

    x: Tensor
    y: Tensor
    offset: Tensor
    method: ClassVar[str] = "isotonic_rest"
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int:
        return len(self.offset) - 1

    @property
    def degrees(self) -> int:
        return len(self.x) // 2

    def transform(self, logits: Tensor) -> Tensor:
        q = interpolate(torch.softmax(logits, -1), self.x, self.y, self.offset)
        return still_impossible(torch.log(q), logits)

    def summary(self) -> dict[str, Any]:
        return {"blocks": self.degrees, "classes": self.k}


@dataclass(frozen=True)
class Isotonic(Calibrator):
    """Isotonic regression of a probability (Zadrozny 2002)."""

    kind: Kind = "top"
    centred: ClassVar[bool] = False
    name: ClassVar[str] = "isotonic"
    map: ClassVar[type[FittedMap]] = IsotonicMap
    maps: ClassVar[tuple[type[FittedMap], ...]] = (IsotonicRestMap,)
    takes_top1: ClassVar[bool] = True
    cost: ClassVar[int] = 0
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"kind": "one_vs_rest"})

    def solve(self, p: Predictions) -> FittedMap:
        self.need(p.n, 2, "one point has no slope")
        columns = probabilities_and_hits(p, kind_of(self.kind, p, self.name))
        found = [pava(values, hit, self.centred) for values, hit in columns]
        size = sum(len(knots.x) for knots in found)
        record = certified({"kind": self.kind} | ({"points": size} if self.centred else {"blocks": size // 2}))
        if self.kind == "top":
            return IsotonicMap(*tensors(found[0].x, found[0].y, found[0].soft), record=record)
        return IsotonicRestMap(*end_to_end([(knots.x, knots.soft) for knots in found]), record=record)


@dataclass(frozen=True)
class CentredIsotonic(Isotonic):
    """Isotonic regression without its flat steps (Oron and Flournoy 2017).

    `kind` as for isotonic.
    """

    name: ClassVar[str] = "isotonic_centred"
    centred: ClassVar[bool] = True
