"""Probabilities → logs, with one floor; and a warning for probabilities that were passed as logits."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.errors import InputError, warn
from calibrant.functional.tensors import first_place

FLOOR = 1e-30
"""Probabilities below this count as this when they become logs."""

SUM_TOLERANCE = {torch.float16: 2e-2, torch.bfloat16: 5e-2, torch.float32: 1e-3, torch.float64: 1e-3}
"""How far from 1 the sum of a row of probabilities may be, by dtype."""

FEW = 100
"""The rows that are checked first; for almost all logits they are enough."""


def log_probabilities(probs: Tensor, where: str = "") -> Tensor:
    """Probabilities [..., N, K], after checks, → log-probabilities in float64, floored at 1e-30."""
    p = probs.to(torch.float64, copy=True)  # the only copy, which becomes the result in place
    total, low = p.sum(-1), p.amin(-1)
    if not bool(torch.isfinite(total).all()) and (at := first_place(~torch.isfinite(p))):
        raise InputError(f"{where}probs in row {at[-2]} has {p[at].item()}; they must be finite")
    if at := first_place(low < 0):
        raise InputError(
            f"{where}probs in row {at[-1]} has the negative value {low[at].item():.4g}; "
            "if these are logits, pass them as logits"
        )
    if at := first_place(~((total - 1).abs() <= SUM_TOLERANCE.get(probs.dtype, 1e-3))):
        raise InputError(
            f"{where}probs in row {at[-1]} sum to {total[at].item():.6g}, not 1; "
            "if these are logits, pass them as logits, else normalise them"
        )
    return p.clamp_min_(FLOOR).log_()


def look_like_probabilities(logits: Tensor, binary: bool) -> bool:
    """Whether all values of [..., N, K] are in 0…1 and all rows sum to 1. If `binary`, the columns are 0 and z, and it
    is enough that z is in 0…1.

    All zeros do not count, because a last layer that is initialised with zeros returns them.
    """
    if not logits.numel():
        return False
    close = SUM_TOLERANCE.get(logits.dtype, 1e-3)
    for rows in (logits[..., :FEW, :], logits):
        low, high = torch.stack(torch.aminmax(rows)).tolist()
        if not 0 <= low <= high <= 1:
            return False
        if not binary and not bool(((rows.double().sum(-1) - 1).abs() <= close).all()):
            return False
    return not binary or bool(logits.any())


def warn_of_probabilities(where: str = "") -> None:
    warn(
        f"{where}these logits look like probabilities; if they are (a model that ends in softmax or sigmoid), "
        "the numbers are wrong: pass them as probs=, or their logarithms as logits (in a file: save them as 'probs', "
        "or name them with --probs-key)"
    )
