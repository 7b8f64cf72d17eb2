"""Dual focal loss (Tao 2023): ℓ = Σ_k q_k · (1 − p_k + p_j(k))^γ · (−log p_k).

p_j(k) is the largest probability strictly below p_k (0 if there is none). So the weight depends on the lead over the
runner-up too, not only on the target's confidence, which counters the under-confidence of focal loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.losses.focal import check_gamma, one_minus_p
from calibrant.losses.item_loss import ItemLoss


@dataclass(eq=False)
class DualFocal(ItemLoss):
    """Dual focal: weight (1 − p + next smaller p)^γ. γ = 5 on CIFAR-10 in the paper; 0 is cross-entropy."""

    gamma: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_gamma(self.gamma)

    def factor(self, log_p: Tensor) -> Tensor:
        lead: Tensor = one_minus_p(log_p) + next_below(log_p.exp())
        return lead**self.gamma


def next_below(p: Tensor) -> Tensor:
    """Return for each entry the largest smaller entry of its row, or 0 if there is none."""
    ordered = p.sort(-1).values
    position = torch.searchsorted(ordered.detach().contiguous(), p.detach().contiguous())
    below = ordered.gather(-1, (position - 1).clamp_min(0))
    return torch.where(position > 0, below, p.new_zeros(()))
