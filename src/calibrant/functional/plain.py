"""Which tensors hold plain numbers: an imaginary part is not dropped, nor whole numbers rounded, in silence."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.errors import InputError


def plain(values: Tensor, name: str, where: str = "") -> Tensor:
    """The same numbers, detached. Float8 has no arithmetic: float32 holds each of its values exactly."""
    if values.is_complex() or values.is_quantized or values.layout is not torch.strided or "_x2" in str(values.dtype):
        kind = str(values.layout if values.layout is not torch.strided else values.dtype).removeprefix("torch.")
        raise InputError(f"{where}{name} holds {kind}, not plain numbers; pass it as a dense tensor of floats")
    values = values.detach()
    return values.float() if values.is_floating_point() and values.dtype.itemsize == 1 else values


def floating(scores: Tensor) -> Tensor:
    """Whole numbers as floats that hold them: float32 has 24 bits, and two logits of 2²⁴ and 2²⁴ + 1 are not tied."""
    if scores.is_floating_point():
        return scores
    return scores.float() if scores.dtype.itemsize <= 2 else scores.double()
