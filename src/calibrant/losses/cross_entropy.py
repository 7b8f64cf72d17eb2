"""Cross-entropy on soft targets: ℓ = Σ_k q_k · (−log p_k), with p = softmax(logits)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from calibrant.losses.reduction import log_probabilities, weighted_sum


@dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy, the reference that every other criterion equals at its neutral setting."""

    class_weights: tuple[float, ...] | None = None

    def __call__(self, logits: Tensor, q: Tensor) -> Tensor:
        return weighted_sum(q, -log_probabilities(logits, q), self.class_weights)
