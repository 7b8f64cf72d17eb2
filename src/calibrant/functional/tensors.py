"""Arrays of any kind → tensors of plain numbers. Nothing is rounded or dropped silently."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError


def as_tensor(values: Any, name: str, where: str = "") -> Tensor:
    """The values as a tensor. Text, objects and ragged lists raise an error that uses `name`."""
    if isinstance(values, Tensor):
        return dense(values, name, where)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{where}{name} is ragged: every row must have the same length") from error
    if array.dtype.kind not in "fiub":
        remedy = "; number the classes from 0, in the order of the scores" if name in ("labels", "predicted") else ""
        raise InputError(f"{where}{name} holds {array.dtype}, not numbers{remedy}")
    if array.dtype == np.longdouble and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    array = np.ascontiguousarray(array) if array.ndim else array.reshape(1)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def dense(values: Tensor, name: str, where: str = "") -> Tensor:
    """The tensor, detached. Complex, quantised and sparse tensors raise an error.

    Float8 has no arithmetic and becomes float32, which holds its values exactly.
    """
    if values.is_complex() or values.is_quantized or values.layout is not torch.strided or "_x2" in str(values.dtype):
        kind = str(values.layout if values.layout is not torch.strided else values.dtype).removeprefix("torch.")
        raise InputError(f"{where}{name} holds {kind}, not plain numbers; pass it as a dense tensor of floats")
    values = values.detach()
    return values.float() if values.is_floating_point() and values.dtype.itemsize == 1 else values


def first_place(wrong: Tensor) -> tuple[int, ...] | None:
    """The index of the first True, or None if there is none."""
    return tuple(wrong.nonzero()[0].tolist()) if bool(wrong.any()) else None


def floating(scores: Tensor) -> Tensor:
    """Scores as floats. Integers of more than 16 bits become float64, because float32 holds only 24 bits exactly."""
    if scores.is_floating_point():
        return scores
    return scores.float() if scores.dtype.itemsize <= 2 else scores.double()
