"""Correctness ranking loss (Moon 2020): λ · mean_i max(0, −g(c_i, c_j)·(κ_i − κ_j) + |c_i − c_j|).

c_i is the share of past examinations in which training item i was predicted correctly, g its sign of difference,
κ a confidence (largest probability, margin of the top two, or negative entropy), and j the item next to i in the
batch (the last is paired with the first). So confidence is trained to rank items as their learning history does.
The history is kept by training index and is part of the checkpoint. It is updated after the penalty is computed, so
that an answer is not compared with itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.inputs import at_least_float32, weighted_mean
from calibrant.protocols import Batch

CONFIDENCES = ("max", "margin", "entropy")


@dataclass(eq=False)
class Ranking:
    """Correctness ranking: confidence must rank items as their history does (Moon 2020).

    `items`: length of the training set. With 0 the history grows with the indices, and each step waits for the device.
    """

    weight: float = 1.0
    confidence: str = "max"
    items: int = 0
    correct: Tensor = field(init=False, repr=False)
    seen: Tensor = field(init=False, repr=False)
    needs_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.confidence not in CONFIDENCES:
            raise InputError(f"confidence must be one of {', '.join(CONFIDENCES)}, got {self.confidence!r}")
        self.correct = torch.zeros(self.items, dtype=torch.int32)
        self.seen = torch.zeros(self.items, dtype=torch.int32)

    def __call__(self, logits: Tensor, batch: Batch) -> Tensor:
        if not isinstance(batch, Batch):
            raise InputError("ranking keeps a history by item; pass Batch(q, labels, index) with the items' indices")
        if batch.labels is None:
            raise InputError("ranking needs labels, and a transform has mixed them; drop mixup/cutmix/ccat or ranking")
        self._make_room(batch.index)
        share = self.correct[batch.index].float() / self.seen[batch.index].clamp_min(1)
        kappa = confidence(logits, self.confidence)
        gap = share - share.roll(-1)
        hinge = torch.relu(-gap.sign() * (kappa - kappa.roll(-1)) + gap.abs())
        answer = (logits.detach().argmax(-1) == batch.labels).int()
        self.correct.index_add_(0, batch.index, answer)
        self.seen.index_add_(0, batch.index, torch.ones_like(answer))
        return self.weight * weighted_mean(hinge, batch.weight)

    def state(self) -> Mapping[str, Any]:
        return {"correct": self.correct.cpu(), "seen": self.seen.cpu()}

    def load(self, state: Mapping[str, Any]) -> None:
        self.correct, self.seen = (state[name].to(self.correct.device, copy=True) for name in ("correct", "seen"))

    def _make_room(self, index: Tensor) -> None:
        self.correct, self.seen = self.correct.to(index.device), self.seen.to(index.device)
        if self.items:
            return
        missing = int(index.max()) + 1 - self.correct.numel()
        if missing > 0:
            self.correct, self.seen = (torch.cat([t, t.new_zeros(missing)]) for t in (self.correct, self.seen))


def confidence(logits: Tensor, kind: str) -> Tensor:
    """Return κ in [0, 1]: the largest probability, its lead over the second, or 1 − entropy / log K."""
    log_p = torch.log_softmax(at_least_float32(logits), -1)
    if kind == "max":
        return log_p.max(-1).values.exp()
    if kind == "margin":
        top = log_p.topk(2, -1).values.exp()
        return top[..., 0] - top[..., 1]
    finite = log_p.masked_fill(log_p == -torch.inf, 0.0)
    return 1 + (log_p.exp() * finite).sum(-1) / math.log(logits.shape[-1])
