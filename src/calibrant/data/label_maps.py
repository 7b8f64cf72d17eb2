"""Maps of labels: a class for each pixel, [N, H, W], as in CamVid or in a user's own data (SS §3.2, A.2).

In everything that is loaded, a pixel without a class is −1. In a file or Dataset, −100 (torch's own mark) means the
same, and so does the user's `ignore_index` (255 in many published sets); any other negative number is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from calibrant.data.records import Part
from calibrant.errors import InputError
from calibrant.functional.segmentation import check_ignore_index
from calibrant.types import Split

IGNORED = -1
"""Label of a pixel that does not count: one without a class, or one outside the image that a shifted crop adds."""
MARKS = (IGNORED, -100)
COMMON = 255
"""Marks pixels without a class in many published sets; here only if the user says so."""


def mark_ignored(y: Tensor, ignore_index: int | None, where: str) -> Tensor:
    """Maps [N, H, W] with −1 wherever a pixel has no class; any other negative number is refused."""
    check_ignore_index(ignore_index)
    marks = torch.tensor([*MARKS, *([] if ignore_index is None else [ignore_index])], dtype=torch.long)
    out = y.long().masked_fill(torch.isin(y.long(), marks), IGNORED)
    if bool((out < IGNORED).any()):
        value, place = first_pixel(out, out < IGNORED)
        raise InputError(
            f"{where}: label {value} {place}; classes are 0, 1, …, and −1 is a pixel without one "
            f"(if {value} marks such pixels, pass ignore_index={value}, --ignore-index)"
        )
    if not bool((out >= 0).any()):
        raise InputError(f"{where}: no pixel has a class, all {out.numel()} are to be ignored; pass labelled maps")
    return out


def check_classes(y: Tensor, classes: int, where: str, model: str) -> None:
    """Refuse a class that the model does not have."""
    if int(y.max()) < classes:
        return
    value, place = first_pixel(y, y >= classes)
    raise InputError(
        f"{where}: label {value} {place}; the classes of {model} are 0 … {classes - 1} "
        f"(if {value} marks pixels without a class, pass ignore_index={value}, --ignore-index)"
    )


def mark_parts(parts: Mapping[Split, Part], ignore_index: int | None, name: str) -> dict[Split, Part]:
    """The parts with ignored pixels marked by −1; `ignore_index` is refused if an item has one label."""
    out = dict(parts)
    for split, part in parts.items():
        if part.y.ndim > 1:
            out[split] = replace(part, y=mark_ignored(part.y, ignore_index, f"{name}, {split}"))
        elif ignore_index is not None:
            raise InputError(
                f"{name} has one label per item: ignore_index={ignore_index} (--ignore-index) is for maps of labels; "
                "drop it"
            )
    return out


def check_common_mark(parts: Mapping[Split, Part], name: str) -> None:
    """Refuse 255 if no class has a number just below it: it is a common mark, not a class."""
    maps = [part.y for part in parts.values() if part.y.ndim > 1]
    if not any(bool((y == COMMON).any()) for y in maps):
        return
    others = max(int(y.masked_fill(y == COMMON, IGNORED).max()) for y in maps)
    if others < COMMON - 1:
        raise InputError(
            f"{name}: pixels of {COMMON} beside the classes 0 … {others}; if they have no class, pass "
            f"data.ignore_index={COMMON} (--set), else number the classes without a gap"
        )


def check_one_label_each(parts: Mapping[Split, Part], name: str) -> None:
    """Refuse maps where only one label per item can be used."""
    for part in parts.values():
        if part.y.ndim > 1:
            size = " × ".join(map(str, part.y.shape[1:]))
            raise InputError(
                f"{name}: its labels are maps of {size}, and this needs one class per item; "
                "maps are for `calibrant predict` (--class-axis 1) and `calibrant train`"
            )


def first_pixel(y: Tensor, wrong: Tensor) -> tuple[int, str]:
    """The label of the first wrong pixel, and where it is."""
    at = tuple(wrong.nonzero()[0].tolist())
    return int(y[at]), f"in map {at[0]}, row {at[1]}, column {at[2]}"
