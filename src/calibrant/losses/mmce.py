"""Maximum mean calibration error (Kumar 2018): λ · √( Σ_ij v_i v_j k(r_i, r_j) ) with v = (c − r) / N.

c: was the prediction correct; r: its confidence; k(r, r') = exp(−|r − r'| / width), width 0.4.
`balanced` is the paper's weighted form (MMCE_w): correct and incorrect items are each divided by their own number,
so that a network that is right on most items still learns from the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.losses.inputs import at_least_float32, on_device_of
from calibrant.protocols import Batch


@dataclass(frozen=True)
class MMCE:
    """Maximum mean calibration error, a kernel measure of conf − acc (Kumar 2018)."""

    weight: float = 2.0
    width: float = 0.4
    balanced: bool = False
    needs_labels: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.width > 0:
            raise InputError(f"width must be positive, got {self.width}; the paper has 0.4")

    def __call__(self, logits: Tensor, batch: Batch | Tensor) -> Tensor:
        logits = at_least_float32(logits)
        if isinstance(batch, Batch):
            labels, weight = batch.labels, batch.weight
        else:
            labels, weight = on_device_of(logits, batch, "labels"), None
        if labels is None:
            raise InputError("mmce needs labels, and a transform has mixed them; drop mixup/cutmix/ccat or mmce")
        confidence, predicted = torch.log_softmax(logits, -1).max(-1)
        correct = predicted == labels
        gap = torch.where(correct, -torch.expm1(confidence), -confidence.exp())  # c − r
        count = torch.ones_like(gap) if weight is None else weight.to(gap.dtype)
        total = count.sum()
        if self.balanced:
            total = torch.where(correct, (count * correct).sum(), (count * ~correct).sum())
        v, r = gap * count / total.clamp_min(torch.finfo(gap.dtype).tiny), confidence.exp()  # tiny: all weights 0
        kernel = torch.exp(-(r[:, None] - r[None, :]).abs() / self.width)
        squared = v @ kernel @ v  # k is positive definite; the floor keeps the slope of √ finite where v = 0
        return self.weight * squared.clamp_min(torch.finfo(squared.dtype).eps ** 2).sqrt()
