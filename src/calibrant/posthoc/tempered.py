"""Where linear maps start: log p at the exact temperature, mixed with a little of the uniform.

    x = log[(1 − ε) softmax(z / T) + ε / K],     ε = 1 / (N + 1)

(Berta, Holzmüller, Jordan and Bach 2025, arXiv 2511.03685: their preprocessing.) The temperature makes the identity
the natural centre to shrink towards, whatever the network's scale; the mixture bounds x from below by what N items
can know, so that one saturated logit cannot own the fit, nor a rare one the answer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from calibrant.posthoc.temperature import least_nll


def tempered(logits: Tensor, temperature: Tensor, epsilon: float) -> Tensor:
    """Finite features [..., N, K] from any logits, −inf and ±1e4 included."""
    log_p = torch.log_softmax(logits / temperature, -1)
    if epsilon == 0:
        return log_p
    floor = log_p.new_tensor(math.log(epsilon / logits.shape[-1]))
    return torch.logaddexp(log_p + math.log1p(-epsilon), floor)


def anchor(logits: Tensor, labels: Tensor) -> Tensor:
    """The exact temperature, or 1 where there is none (separable items, or worse than uniform)."""
    T, certificate = least_nll(logits, labels)
    return torch.tensor(1.0 if certificate["bound"] is not None else T, dtype=torch.float64)


def uniform_share(n: int) -> float:
    """ε: one item in N + 1."""
    return 1 / (n + 1)
