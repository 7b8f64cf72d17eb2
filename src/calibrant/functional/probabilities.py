"""Probabilities where logits belong, the commonest slip: a softmax too many. It is said, and the values are kept."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.errors import warn

SUM_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 5e-2, torch.float32: 1e-3, torch.float64: 1e-3}
"""How far from 1 a row of probabilities may sum, by what its dtype can hold."""

FEW = 100
"""Rows that are looked at first; they settle it for almost all logits."""


def look_like_probabilities(logits: Tensor, binary: bool) -> bool:
    """Whether every value of [..., N, K] lies in 0…1 and every row sums to 1; `binary`: columns 0 and z, z in 0…1.

    A column of zeros is no such case: that is what a last layer gives that was initialised with zeros.
    """
    close = SUM_TOLERANCE.get(logits.dtype, 1e-3)
    for rows in (logits[..., :FEW, :], logits):
        inside = ((rows >= 0) & (rows <= 1)).all()
        if not bool(inside if binary else inside & ((rows.double().sum(-1) - 1).abs() <= close).all()):
            return False
    return not binary or bool(logits.any())


def warn_of_probabilities(where: str = "") -> None:
    warn(
        f"{where}these logits look like probabilities; if they are (a model that ends in softmax or sigmoid), "
        "the numbers are wrong: pass them as probs=, or their logarithms as logits (in a file: save them as 'probs', "
        "or name them with --probs-key)"
    )
