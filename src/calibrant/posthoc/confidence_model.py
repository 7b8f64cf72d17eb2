"""Confidence models: they read the *features* of an item, replace its confidence, and never change its label.

A logit map sees only the output of the network's last layer; a confidence model sees the input of that layer. So its
map has no `map(logits)`: `map.predictions(p)` reads `p.features` and sets `predicted` and `confidence`. If there are
logits, they carry the new confidence in the same way as those of a top-label map (`toplabel.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError, MapError
from calibrant.functional.pooling import pooled
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.toplabel import top_of, with_confidence
from calibrant.types import Predictions


@dataclass(frozen=True, eq=False)
class ConfidenceMap(FittedMap):
    """Abstract: write `confidence`. `floor` is the smallest probability of an error, or of success, in the logits."""

    keeps_label: ClassVar[bool] = True
    floor: float = field(default=1e-6, kw_only=True)

    def confidence(self, features: Tensor, predicted: Tensor, logits: Tensor | None) -> Tensor:
        """The confidence of the predicted class in [0, 1], from features [N, D] and perhaps logits [N, K]."""
        raise TypeError(f"{type(self).__name__} must define confidence")

    def __call__(self, logits: Any = None, *, probs: Any = None) -> Tensor:
        raise MapError(
            f"{self.method} reads features, which logits do not carry; use map.predictions(p) with "
            "calibrant.predictions(…, features=…)"
        )

    def outcome(self, p: Predictions) -> Predictions:
        x = features_of(p, self.method)
        width: int = self.width  # type: ignore[attr-defined]
        if x.shape[1] != width:
            raise MapError(
                f"this {self.method} map was fitted on {width} features per item, "
                f"{p.source or 'these predictions'} have {x.shape[1]}; take them from the same layer"
            )
        predicted = top_of(p).predicted
        z = None if p.logits is None else pooled_logits(p)
        confidence = self.confidence(x, predicted.cpu(), z).clamp(0.0, 1.0).to(predicted.device)
        return with_confidence(p, predicted, confidence, confidence.clamp(self.floor, 1 - self.floor))


@dataclass(frozen=True)
class ConfidenceModel(Calibrator):
    """Abstract: a calibrator that reads features; write `solve`."""

    takes_top1: ClassVar[bool] = True
    takes_members: ClassVar[bool] = True
    cost: ClassVar[int] = 3


def pooled_logits(p: Predictions) -> Tensor:
    """[N, K] float64 on the CPU."""
    assert p.logits is not None
    return pooled(p.logits).cpu()


def features_of(p: Predictions, name: str) -> Tensor:
    """The features, [N, D] float64 on the CPU. Without them, an error says how to get them."""
    where = p.source or "these predictions"
    if p.features is None:
        raise InputError(
            f"{name} needs features, and there are none in {where}; write them with `calibrant predict MODEL "
            "--features`, or pass calibrant.predictions(…, features=…)"
        )
    x = p.features.detach().cpu().double().reshape(p.n, -1)
    bad = (~torch.isfinite(x)).any(1).nonzero()
    if len(bad):
        raise InputError(f"{name}: the features of row {int(bad[0])} of {where} are not finite; repair or drop it")
    return x
