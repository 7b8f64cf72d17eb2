"""Items of a user's Dataset as tensors: x as an image or a vector, y as the number of a class or a map of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError

LONG = 60
"""Characters of a label that an error shows."""


def stack_inputs(items: Iterable[Any]) -> Tensor:
    """The inputs of some items as one tensor; they must be of one size."""
    inputs = [as_item(item, place)[0] for place, item in enumerate(items)]
    shapes = {tuple(x.shape) for x in inputs}
    if len(shapes) > 1:
        shown = ", ".join(str(shape) for shape in sorted(shapes)[:3])
        raise InputError(f"one batch has items of sizes {shown}; resize in the Dataset or use batch_size=1 (--batch)")
    return torch.stack(inputs)


def as_item(item: Any, place: int) -> tuple[Tensor, int | Tensor]:
    """One item of a Dataset as a tensor and a class number or a map of class numbers."""
    if not isinstance(item, (tuple, list)) or len(item) < 2:
        raise InputError(f"item {place} is a {type(item).__name__}; each must be (x, y)")
    x = as_tensor(item[0])
    label: int | Tensor
    if (found := as_map(item[1])) is not None:
        return x, found
    try:
        label = int(item[1])
        whole = bool(label == item[1]) and label >= 0
    except (TypeError, ValueError, RuntimeError):  # a vector, a text
        whole = False
    if not whole:
        raise InputError(
            f"item {place} has the label {_shown(item[1])}; a label is the number of a class, 0, 1, …, "
            "or a map of such numbers [H, W]"
        )
    return x, label


def _shown(label: Any) -> str:
    """The label on one line, shortened if it is long."""
    if isinstance(label, (Tensor, np.ndarray)) and label.ndim > 1:
        return f"{type(label).__name__} of shape {tuple(label.shape)}, {label.dtype}"
    text = " ".join(repr(label).split())
    return text if len(text) <= LONG else text[:LONG] + " …"


def as_tensor(x: Any) -> Tensor:
    """One input as a tensor: an image as [C, H, W], floats as float32."""
    if isinstance(x, Tensor):
        out = x
    elif hasattr(x, "convert"):  # a PIL image: height, width, channels
        pixels = torch.from_numpy(np.array(x))
        out = pixels if pixels.ndim == 2 else pixels.permute(2, 0, 1)
    else:
        out = torch.as_tensor(np.asarray(x))
    out = out.unsqueeze(0) if out.ndim == 2 else out
    numbers = out.dtype == torch.long and out.ndim > 1  # only vectors of int64 are tokens
    return out.float() if numbers or out.dtype in (torch.float64, torch.float16, torch.bfloat16) else out


def as_map(label: Any) -> Tensor | None:
    """A map of labels [H, W] from a tensor, an array or a PIL image, also of shape [1, H, W]; None if it is no map."""
    try:
        values = label if isinstance(label, Tensor) else torch.as_tensor(_native(np.array(label)))
    except (TypeError, ValueError, RuntimeError):  # a text, ragged lists
        return None
    values = values[0] if values.ndim == 3 and len(values) == 1 else values
    if values.ndim != 2 or values.is_complex() or values.numel() < 2:
        return None
    found = values.long()
    if values.dtype == torch.uint64 and bool((found < 0).any()):
        return None  # beyond 63 bits: they would become negative, and so marks
    return None if values.is_floating_point() and bool((found != values).any()) else found


def _native(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The values in this machine's byte order, the only one that torch accepts."""
    return values.astype(values.dtype.newbyteorder("="), copy=False)
