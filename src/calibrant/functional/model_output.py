"""The logits in the output of a model: the tensor itself, `.logits` (transformers), or `["logits"]`.

A binary model may return one logit per item, for class 1. The logit of class 0 is then 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError


def logits_of(output: Any) -> Tensor:
    """The logits in the output of a model."""
    if isinstance(output, Tensor):
        return output
    inner = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(inner, Tensor):
        return inner
    raise InputError(
        f"the model returned {type(output).__name__}; expected a tensor [N, K] or an object with .logits "
        "(wrap the model: lambda x: model(x)[0])"
    )


def both_classes(logits: Tensor) -> Tensor:
    """One column [N] or [..., 1], the logit of class 1, becomes [..., 2]; more columns stay as they are."""
    if logits.ndim > 1 and logits.shape[-1] != 1:
        return logits
    one = logits if logits.ndim == 1 else logits[..., 0]
    return torch.stack([torch.zeros_like(one), one], -1)
