"""What a model returned → the tensor of its scores: itself, `.logits` (transformers), or `["logits"]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from calibrant.errors import InputError


def logits_of(output: Any) -> Tensor:
    """The tensor of scores in whatever a model returned."""
    if isinstance(output, Tensor):
        return output
    inner = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(inner, Tensor):
        return inner
    raise InputError(
        f"the model returned {type(output).__name__}; expected a tensor [N, K] or an object with .logits "
        "(wrap the model: lambda x: model(x)[0])"
    )
