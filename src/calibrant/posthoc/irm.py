"""IRM: one strictly isotonic function for all entries of the probability vector (Zhang et al. 2020, Mix-n-Match §3.3).

    q_k ∝ (1 − ε) f(p_k) + ε p_k,     f = isotonic regression of 1[y = k] on p_k over all N · K entries

One function for all classes keeps the order of the classes, and its N · K pairs make it data-efficient. The term ε p
makes q strictly increasing in p, so the label is kept. ε is 1/(N + 1); the 1e-9 of the paper's code gives a huge NLL
where f is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.functional.probabilities import FLOOR
from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.isotonic import pava
from calibrant.posthoc.map import FittedMap, still_impossible
from calibrant.posthoc.step_functions import interpolate, tensors
from calibrant.types import Predictions


@dataclass(frozen=True, eq=False)
class IrmMap(FittedMap):
    """The knots of f, and ε."""

    x: Tensor
    y: Tensor
    epsilon: float
    method: ClassVar[str] = "irm"
    keeps_label: ClassVar[bool] = True

    @property
    def degrees(self) -> int:
        return len(self.x) // 2

    def transform(self, logits: Tensor) -> Tensor:
        p = torch.softmax(logits, -1).clamp_min(FLOOR)
        q = (1 - self.epsilon) * interpolate(p, self.x, self.y) + self.epsilon * p
        return still_impossible(torch.log(q), logits)

    def summary(self) -> dict[str, Any]:
        return {"blocks": self.degrees, "epsilon": self.epsilon}


@dataclass(frozen=True)
class Irm(Calibrator):
    """One strictly isotonic function for all probabilities (Zhang 2020, Mix-n-Match).

    `epsilon` is 1/(N + 1) by default.
    """

    epsilon: float | None = None
    name: ClassVar[str] = "irm"
    map: ClassVar[type[FittedMap]] = IrmMap
    cost: ClassVar[int] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        inside = self.epsilon is None or 0 < self.epsilon < 1
        self.require(inside, "epsilon", "must lie strictly between 0 and 1: 0 would not keep the label")

    def solve(self, p: Predictions) -> FittedMap:
        assert p.logits is not None
        self.need(p.n, 2, "one point has no slope")
        prob = torch.softmax(p.logits.double(), -1)
        hit = torch.zeros_like(prob, dtype=torch.bool).scatter_(1, p.labels[:, None], True)
        steps = pava(prob.flatten().cpu().numpy(), hit.flatten().cpu().numpy())
        epsilon = 1 / (p.n + 1) if self.epsilon is None else self.epsilon
        record = certified({"blocks": len(steps.x) // 2, "pairs": prob.numel()})
        x, y = tensors(steps.x, steps.y)
        return IrmMap(x, y, epsilon, record=record)
