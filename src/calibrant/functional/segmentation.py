"""Semantic segmentation: scores [N, K, H, W] and images of labels [N, H, W] → one item per pixel.

Pixels with the label `ignore_index` are dropped, with everything that belongs to them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError


def axis_of_classes(shape: Sequence[int], class_axis: int | None, name: str, where: str = "") -> int:
    """`class_axis` counted from 0. If it is None: the last of two axes, axis 1 of four or more, and an error for three,
    where it could be either."""
    if class_axis is None:
        if len(shape) == 3:
            raise InputError(
                f"{where}{name} of shape {tuple(shape)}: with three axes the classes may be the second or the last; "
                "pass class_axis=1 or class_axis=-1"
            )
        class_axis = 1 if len(shape) > 3 else -1
    if isinstance(class_axis, bool) or not isinstance(class_axis, Integral):
        given = " ".join(repr(class_axis).split())
        raise InputError(f"{where}class_axis={given} must be a whole number, such as 1 for [N, K, H, W]")
    if not -len(shape) <= class_axis < len(shape):
        raise InputError(f"{where}class_axis={class_axis} does not exist in {name} of shape {tuple(shape)}")
    return int(class_axis) % len(shape)


def classes_last(scores: Tensor, class_axis: int | None, name: str, where: str = "") -> Tensor:
    axis = axis_of_classes(scores.shape, class_axis, name, where)
    return scores if axis == scores.ndim - 1 else scores.movedim(axis, -1)


def classes_back(logits: Tensor, class_axis: int | None) -> Tensor:
    """The inverse of `classes_last`: move the classes from the last axis to `class_axis`."""
    return logits.movedim(-1, axis_of_classes(logits.shape, class_axis, "logits"))


def flatten(
    scores: Tensor | None, y: Tensor, beside: Mapping[str, Any], ignore_index: int | None, where: str = ""
) -> tuple[Tensor | None, Tensor, dict[str, Any]]:
    """(scores [N, K], labels [N], other columns), with one row per pixel. Each image of labels becomes a group.

    `ids` and `group` with one entry per image apply to each of its pixels.
    """
    out = dict(beside)
    shape = tuple(np.shape(out["predicted"])) if scores is None else tuple(scores.shape[:-1])
    if y.ndim > 1 and shape == tuple(y.shape) and not (scores is None and shape[1:] == (1,)):
        image = torch.arange(len(y), device="cpu").reshape(-1, *[1] * (y.ndim - 1)).expand(y.shape).reshape(-1)
        for name in ("ids", "group"):
            if out[name] is not None and len(out[name]) == len(y):
                out[name] = select(out[name], image)
        if out["group"] is None:
            out["group"] = image
        for name in ("predicted", "confidence"):
            if np.shape(out[name]) == tuple(y.shape):
                out[name] = (
                    out[name].reshape(-1) if isinstance(out[name], Tensor) else np.asarray(out[name]).reshape(-1)
                )
        scores = None if scores is None else scores.reshape(-1, scores.shape[-1])
        y = y.reshape(-1)
    elif scores is not None and y.ndim > 1 and scores.ndim > 2 and scores.shape[1:-1] == y.shape:
        raise InputError(f"{where}members of label images are not supported; pool them first")
    check_ignore_index(ignore_index, where)
    if ignore_index is None or bool((y != ignore_index).all()):
        return scores, y, out
    total, axis = len(y), 0 if scores is None or scores.ndim == 1 else -2
    if scores is not None and scores.shape[axis] != total:
        raise InputError(f"{where}{scores.shape[axis]} rows of scores but {total} labels; they must be of equal length")
    keep = (y.reshape(total, -1)[:, 0] != ignore_index).nonzero()[:, 0]
    for name, column in out.items():
        if column is not None and len(column) == total:  # any other length is refused later
            out[name] = select(column, keep.cpu())
    return None if scores is None else scores.index_select(axis, keep.to(scores.device)), y[keep], out


def check_ignore_index(ignore_index: Any, where: str = "") -> None:
    if ignore_index is None:
        return
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, Integral):
        raise InputError(f"{where}ignore_index={ignore_index!r} must be a whole number")
    if not -(2**63) <= int(ignore_index) < 2**63:
        raise InputError(f"{where}ignore_index={ignore_index} is beyond 64 bits, and no label is that large; drop it")


def select(column: Any, index: Tensor) -> Any:
    """The entries at `index` (on the CPU) of a tensor, an array or a sequence of text."""
    if isinstance(column, Tensor):
        return column[index.to(column.device)]
    if isinstance(column, np.ndarray):
        return column[index.numpy()]
    return [column[i] for i in index.tolist()]
