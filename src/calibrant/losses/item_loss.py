"""The base of all losses: targets, precision, class weights and reduction. A loss writes only its `factor` w.

    ℓ_i = Σ_k q_ik · c_k · w(p_i)_k · (−log p_ik),     p = softmax(logits),  c: class weights

It is called like `torch.nn.CrossEntropyLoss`: with integer labels or with soft targets q, giving the mean, the sum or
(`reduction="none"`, what our own loop asks for) a loss per item.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.functional.soft_labels import soft_labels
from calibrant.losses.inputs import at_least_float32, on_device_of

Reduction = Literal["mean", "sum", "none"]


@dataclass(kw_only=True, eq=False)  # modules are compared by identity
class ItemLoss(nn.Module):
    """The abstract base class of losses. A loss adds its settings as fields and writes `factor`.

    The module has no state: `weight` is a setting, and is copied to the device of the logits. So a model that contains
    its loss has the same `state_dict` as one that does not.

    The mean is torch's: labels are averaged by the weights of their classes, soft targets over the items that have one.
    Labels that are negative or `ignore_index` are ignored; a batch without other labels has loss 0.
    """

    weight: tuple[float, ...] | None = None  # one per class
    reduction: Reduction = "mean"
    ignore_index: int = -100

    def __post_init__(self) -> None:
        super().__init__()  # the fields are set already, and nn.Module keeps them
        if self.reduction not in get_args(Reduction):
            raise InputError(f"reduction={self.reduction!r} is unknown; use 'mean', 'sum' or 'none'")
        if self.weight is not None:
            self.weight = tuple(map(float, self.weight))  # tensors and lists too
            if not all(0 <= w < math.inf for w in self.weight) or not any(self.weight):
                raise InputError(f"class weights must be 0 or more, and not all 0, got {list(self.weight)}")

    def factor(self, log_p: Tensor) -> Tensor | float:
        """Return w(p) of each class, from log p [..., K]."""
        raise TypeError(f"{type(self).__name__} must define factor")

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of logits [N, K] against labels [N] or soft targets [N, K].

        Logits of images have their classes at axis 1, as in torch. With labels [N, H, W] or soft targets [N, H, W, K],
        the classes may also be at the last axis."""
        logits = at_least_float32(logits)
        target = on_device_of(logits, target, "labels")
        hard = not target.is_floating_point()
        if hard:
            logits = classes_last(logits, target)
            labels = target.long()
            target = soft_labels(labels.masked_fill(labels == self.ignore_index, -1), logits.shape[-1], 0.0)
        elif logits.ndim > 2:
            logits, target = _soft_last(logits, target)
        if target.shape != logits.shape:
            raise InputError(
                f"targets {tuple(target.shape)} and logits {tuple(logits.shape)} do not fit; pass integer labels [N], "
                "or soft targets of the shape of the logits, classes at axis 1"
            )
        log_p = torch.log_softmax(logits, -1)
        # a class with logit −∞ and target 0 gets a large finite loss, because 0 · ∞ is NaN
        log_p = torch.where(target == 0, log_p.clamp_min(-1e30), log_p)
        weighted = self._weighted(target.to(log_p.dtype))
        items = (weighted * (self.factor(log_p) * -log_p)).sum(-1)
        if self.reduction == "none":
            return items
        if self.reduction == "sum":
            return items.sum()
        counted = weighted.sum(-1) if hard else (target.sum(-1) > 0).to(items.dtype)
        return items.sum() / counted.sum().clamp_min(torch.finfo(items.dtype).tiny)

    def _weighted(self, q: Tensor) -> Tensor:
        if self.weight is None:
            return q
        if len(self.weight) != q.shape[-1]:
            raise InputError(f"{len(self.weight)} class weights for {q.shape[-1]} classes; give one per class")
        if torch.compiler.is_compiling():  # where a list is a constant of the graph
            return q * torch.tensor(self.weight, dtype=q.dtype, device=q.device)
        return q * _tensor(self.weight, q.dtype, q.device)


def classes_last(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the logits with the classes at the last axis. In torch, images have them at axis 1."""
    last = labels.shape == logits.shape[:-1]
    second = logits.ndim > 2 and labels.shape == (*logits.shape[:1], *logits.shape[2:])
    if last and second:
        raise InputError(
            f"labels {tuple(labels.shape)} and logits {tuple(logits.shape)} fit with the classes at axis 1 and at the "
            "last; pass logits.movedim(1, -1).flatten(0, -2) and labels.flatten()"
        )
    return logits.movedim(1, -1) if second else logits


def _soft_last(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and soft targets with the classes at the last axis.

    If both have the same shape, the classes are at axis 1, as in torch. Soft targets of label maps have them last."""
    same, moved = target.shape == logits.shape, logits.movedim(1, -1)
    if same and target.shape == moved.shape:
        raise InputError(
            f"soft targets and logits {tuple(logits.shape)} fit with the classes at axis 1 and at the last; "
            "pass logits.movedim(1, -1).flatten(0, -2) and rows of targets [N, K]"
        )
    if same:
        return moved, target.movedim(1, -1)
    return (moved if target.shape == moved.shape else logits), target


@lru_cache(maxsize=32)
def _tensor(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # cached, because copying a list to the GPU at every step would wait for the device
    return torch.tensor(values, dtype=dtype, device=device)
