"""Maps of the top label's confidence: they change the confidence, never the label.

A subclass writes `confidence(top)`. `map.predictions(p)` sets it as explicit `predicted` and `confidence`, which
metrics use. `map(logits)` still gives logits: the predicted class gets the new confidence c, and the others share what
is left in proportion,

    log p'_a = log c,      log p'_j = log(1 − c) + z_j − log Σ_{i≠a} exp z_i   (j ≠ a).

These logits use `soft(top)` for c. A bin without errors does not show that errors are impossible, and a confidence of
exactly 1 would make NLL infinite.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.functional.pooling import pooled
from calibrant.posthoc.map import FittedMap
from calibrant.types import Predictions


@dataclass(frozen=True)
class Top:
    """The predicted class of each item, its probability, and log(1 − probability) with all its digits."""

    predicted: Tensor
    confidence: Tensor
    log_error: Tensor


def log_sum_exp(z: Tensor) -> Tensor:
    """[..., K] → [..., 1]. It is written out because onnxruntime's own does not shift a row that begins with −inf."""
    shift = z.amax(-1, keepdim=True).clamp_min(-1e30)
    return torch.log(torch.exp(z - shift).sum(-1, keepdim=True)) + shift


def top_of_logits(logits: Tensor) -> Top:
    """[..., N, K] float64 → Top of the same leading shape."""
    z = logits - logits.amax(-1, keepdim=True)
    a = z.argmax(-1, keepdim=True)
    rest = log_sum_exp(z.scatter(-1, a, -torch.inf))[..., 0]
    log_z = torch.log1p(torch.exp(rest))  # rest ≤ log(K − 1); onnxruntime has no float64 softplus
    return Top(a[..., 0], torch.exp(-log_z), rest - log_z)


def top_of(p: Predictions) -> Top:
    """The explicit predicted class and confidence, or else those of the (pooled) logits."""
    if p.predicted is not None and p.confidence is not None:
        c = p.confidence.double()
        return Top(p.predicted, c, torch.log1p(-c))
    assert p.logits is not None
    return top_of_logits(pooled(p.logits))


def spread(logits: Tensor, predicted: Tensor, confidence: Tensor) -> Tensor:
    """Logits whose `predicted` class has `confidence` and whose others share the rest in proportion."""
    a = predicted[..., None]
    others = logits.scatter(-1, a, -torch.inf)
    log_rest = log_sum_exp(others)
    alone = torch.isneginf(log_rest)  # no other class is possible: there is nothing to share
    out = others - log_rest.masked_fill(alone, 0.0) + torch.log1p(-confidence)[..., None]
    out = out.scatter(-1, a, torch.log(confidence)[..., None])
    return torch.where(alone, logits, out)


def with_confidence(p: Predictions, predicted: Tensor, confidence: Tensor, soft: Tensor) -> Predictions:
    """The same items with this label and confidence. Logits, if there are any, carry `soft`, which is never 0 or 1."""
    logits = None if p.logits is None else spread(pooled(p.logits), predicted, soft)
    return replace(p, logits=logits, predicted=predicted, confidence=confidence, raw=False)


@dataclass(frozen=True, eq=False)
class TopLabelMap(FittedMap):
    """Abstract: write `confidence`. `floor` is the smallest probability of an error, or of success, in the logits."""

    keeps_label: ClassVar[bool] = True
    floor: float = field(default=1e-6, kw_only=True)

    def confidence(self, top: Top) -> Tensor:
        """New confidence of each item, in [0, 1]."""
        raise TypeError(f"{type(self).__name__} must define confidence")

    def soft(self, top: Top) -> Tensor:
        """The confidence that logits carry: strictly between 0 and 1."""
        return self.confidence(top).clamp(self.floor, 1 - self.floor)

    def transform(self, logits: Tensor) -> Tensor:
        top = top_of_logits(logits)
        return spread(logits, top.predicted, self.soft(top))

    def outcome(self, p: Predictions) -> Predictions:
        """The same labels with the new confidence; a top-1 set stays one."""
        top = top_of(p)
        here = self.to(top.confidence.device)
        return with_confidence(p, top.predicted, here.confidence(top), here.soft(top))


def least(n: int) -> float:
    """Half an item in n + 1: the smallest probability that n items can show."""
    return 0.5 / (n + 1)
