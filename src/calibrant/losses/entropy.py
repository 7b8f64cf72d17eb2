"""Entropy regularisation (DS Eq. 10, Pereyra 2017): L = L_ce − β·H(p), so the penalty is −β · mean_i H(p_i)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.losses.inputs import at_least_float32, item_weights, weighted_mean
from calibrant.protocols import Batch


@dataclass(frozen=True)
class Entropy:
    """Entropy regularisation, −β·H(p) (DS, equation 10). `weight` is the paper's β."""

    weight: float = 0.1

    def __call__(self, logits: Tensor, batch: Batch | Tensor | None = None) -> Tensor:
        log_p = torch.log_softmax(at_least_float32(logits), -1)
        finite = log_p.masked_fill(log_p == -torch.inf, 0.0)  # 0 · log 0 = 0
        return self.weight * weighted_mean((log_p.exp() * finite).sum(-1), item_weights(batch))
