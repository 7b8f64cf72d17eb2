"""Cross-entropy on soft targets: ℓ = Σ_k q_k · (−log p_k), with p = softmax(logits)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calibrant.losses.item_loss import ItemLoss


@dataclass(eq=False)
class CrossEntropy(ItemLoss):
    """Cross-entropy, the reference that every other loss equals at its neutral setting."""

    def factor(self, log_p: Tensor) -> float:
        return 1.0
