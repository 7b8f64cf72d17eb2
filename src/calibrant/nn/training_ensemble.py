"""Training-phase ensemble (SS D.4): in training, a prediction is the mean of N_train passes, each with its own dropout.

It is a wrapper, so that training loops need no change. In training mode the batch passes N times at once, and the log
of the mean probability is returned. In evaluation mode it is the network itself. Without dropout all passes agree.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.functional.segmentation import axis_of_classes


class TrainingEnsemble(nn.Module):
    """`model` with `n` passes in training.

    `class_axis` is the axis of classes: by default the last of two axes, and axis 1 of four or more ([N, K, H, W]).
    With three axes it must be given, because it could be either.
    """

    def __init__(self, model: nn.Module, n: int, class_axis: int | None = None) -> None:
        super().__init__()
        if n < 1:
            raise InputError(f"passes must be at least 1, got {n}")
        self.model, self.n = model, n
        self.class_axis: int | None = getattr(model, "class_axis", None) if class_axis is None else class_axis

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.n == 1:
            out: Tensor = self.model(x)
            return out
        logits: Tensor = self.model(x.repeat(self.n, *[1] * (x.ndim - 1)))
        axis = axis_of_classes(logits.shape, self.class_axis, "logits")
        members = torch.log_softmax(logits.float(), axis).reshape(self.n, x.shape[0], *logits.shape[1:])
        return torch.logsumexp(members, 0) - math.log(self.n)
