"""Training-phase ensemble (SS D.4): while training, a prediction is the mean of N_train passes with their own dropout.

A wrapper, so that no loop has to know: in training mode the batch goes through N times at once and the log of the mean
probability comes out; in evaluation mode it is the network itself. Without dropout all passes agree.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from calibrant.errors import InputError


class Passes(nn.Module):
    """`model` with `n` passes in training."""

    def __init__(self, model: nn.Module, n: int) -> None:
        super().__init__()
        if n < 1:
            raise InputError(f"passes must be at least 1, got {n}")
        self.model, self.n = model, n

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.n == 1:
            out: Tensor = self.model(x)
            return out
        logits: Tensor = self.model(x.repeat(self.n, *[1] * (x.ndim - 1)))
        members = torch.log_softmax(logits.float(), -1).reshape(self.n, x.shape[0], *logits.shape[1:])
        return torch.logsumexp(members, 0) - math.log(self.n)
