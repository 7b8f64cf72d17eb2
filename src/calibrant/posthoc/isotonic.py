"""Isotonic regression (Zadrozny 2002): the non-decreasing function of a probability with the least squared error.

PAVA needs the data only as *groups*: each distinct value that a hit has, and each run of misses between two of them.
One-vs-rest columns have few hits, so one fast sort of the values and a binary search of the hits replace the
argsort of N pairs, and PAVA runs on a few dozen groups.

Between two blocks the function is linear, as scikit-learn's is; outside it is constant. `kind="top"` maps the
confidence of the predicted class; `kind="one_vs_rest"` maps every class and normalises the rows. Logits never
carry exactly 0 or 1: the first and the last block then count half an item more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.functional.binning import settled
from calibrant.posthoc.calibrator import Calibrator, at_least, certified
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.one_vs_rest import Kind, check_kind, every_class_of
from calibrant.posthoc.toplabel import Top, TopLabelMap, top_of
from calibrant.types import Predictions

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Steps:
    """Knots of one non-decreasing function, two per block: its first and last x. `soft` avoids 0 and 1."""

    x: Floats
    y: Floats
    soft: Floats


def pava(values: Floats, hit: NDArray[np.bool_]) -> Steps:
    """Isotonic regression of hits on values."""
    from scipy.optimize import isotonic_regression

    values, ordered = settled(values)
    at, hits = np.unique(values[hit], return_counts=True)
    left, right = np.searchsorted(ordered, at, "left"), np.searchsorted(ordered, at, "right")
    # groups in order: misses below the first hit, hit 1, misses between 1 and 2, hit 2, …, misses above the last
    start = np.empty(2 * len(at) + 1, dtype=np.int64)
    start[0], start[1::2], start[2::2] = 0, left, right
    size = np.diff(np.append(start, len(ordered)))
    total = np.zeros(len(start))
    total[1::2] = hits
    kept = size > 0
    start, size, total = start[kept], size[kept], total[kept]
    fit = isotonic_regression(total / size, weights=size)
    block = fit.blocks[:-1]
    first = start[block]
    last = np.append(first[1:], len(ordered)) - 1
    y = fit.x[block]
    count = np.diff(np.append(first, len(ordered)))
    x = np.stack([ordered[first], ordered[last]], 1).reshape(-1)
    return Steps(x, np.repeat(y, 2), np.repeat(_soften(y, count), 2))


def _soften(y: Floats, count: NDArray[np.int64]) -> Floats:
    soft = y.copy()
    if y[0] == 0:
        soft[0] = 0.5 / (count[0] + 1) if len(y) == 1 else min(0.5 / (count[0] + 1), y[1] / 2)
    if y[-1] == 1:
        soft[-1] = 1 - 0.5 / (count[-1] + 1) if len(y) == 1 else max(1 - 0.5 / (count[-1] + 1), (1 + y[-2]) / 2)
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
    """Each class by its own function: knots of class c are x[offset_c : offset_{c+1}]."""

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
        p = torch.softmax(logits, -1)
        out = torch.empty_like(p)
        for c, (i, j) in enumerate(zip(self.offset[:-1].tolist(), self.offset[1:].tolist(), strict=True)):
            out[..., c] = interpolate(p[..., c], self.x[i:j], self.y[i:j])
        return torch.where(torch.isneginf(logits), logits, torch.log(out))

    def summary(self) -> dict[str, Any]:
        return {"blocks": self.degrees, "classes": self.k}


def interpolate(p: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Linear between knots, constant outside. Knots may repeat an x (a block of one value)."""
    values = np.interp(p.detach().cpu().double().numpy(), x.cpu().numpy(), y.cpu().numpy())
    return torch.from_numpy(np.asarray(values)).to(p.device)


@dataclass(frozen=True)
class Isotonic(Calibrator):
    """Isotonic regression of a probability (Zadrozny 2002)."""

    kind: Kind = "top"
    name: ClassVar[str] = "isotonic"
    map: ClassVar[type[FittedMap]] = IsotonicMap
    maps: ClassVar[tuple[type[FittedMap], ...]] = (IsotonicRestMap,)
    takes_top1: ClassVar[bool] = True
    cost: ClassVar[int] = 0
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"kind": "one_vs_rest"})

    def __post_init__(self) -> None:
        check_kind(self.kind)

    def solve(self, p: Predictions) -> FittedMap:
        at_least(p, 2, "one point has no slope", self.name)
        y = p.labels.cpu().numpy()
        if self.kind == "top":
            top = top_of(p)
            steps = pava(top.confidence.cpu().numpy(), top.predicted.cpu().numpy() == y)
            record = certified({"kind": "top", "blocks": len(steps.x) // 2})
            return IsotonicMap(_tensor(steps.x), _tensor(steps.y), _tensor(steps.soft), record=record)
        logits = every_class_of(p, self.name)
        parts: list[Steps] = []
        log_z = torch.logsumexp(logits.double(), -1, keepdim=True).cpu()
        k = logits.shape[1]
        for start in range(0, k, 64):  # columns are strided: a block of them at a time is read once
            columns = torch.exp(logits[:, start : start + 64].cpu().double() - log_z).T.contiguous().numpy()
            parts += [pava(column, y == start + i) for i, column in enumerate(columns)]
        blocks = [len(s.x) for s in parts]
        return IsotonicRestMap(
            _tensor(np.concatenate([s.x for s in parts])),
            _tensor(np.concatenate([s.soft for s in parts])),
            torch.from_numpy(np.cumsum([0, *blocks])),
            record=certified({"kind": "one_vs_rest", "blocks": sum(blocks) // 2}),
        )


def _tensor(values: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values))
