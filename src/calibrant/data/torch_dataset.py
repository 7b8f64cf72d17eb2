"""A user's own `torch.utils.data.Dataset` or pair of arrays (x, y), or a mapping of them, as parts.

In a recipe it is `package.module:factory`. One Dataset is split in four, as digits are; a mapping {"train": …, "test":
…} keeps its parts. Items are (x, y): x is a PIL image, a tensor or an array ([C, H, W], [H, W] or [D]); y is a class
number, or a map of them [H, W] with −1 where a pixel has no class (`label_maps`). Items of equal size are stacked once
and kept on the device; others stay in the Dataset and are fetched batch by batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from calibrant.data.factory import call_factory
from calibrant.data.items import as_item
from calibrant.data.records import Part
from calibrant.errors import InputError, unknown, users_code
from calibrant.functional import tensors
from calibrant.types import Split

QUIET_BELOW = 5000
"""Data sets smaller than this are converted without a progress bar."""


Given = Dataset[Any] | tuple[Any, Any]
"""One data set: a Dataset, or a pair of arrays (x, y)."""


def imported(text: str) -> Given | Mapping[str, Given]:
    """What `package.module:factory` returns."""
    module, _, name = text.partition(":")
    given = call_factory(module, name, f"data {text!r}")
    if not isinstance(given, Dataset | Mapping | tuple):
        raise InputError(f"{text!r} returned {type(given).__name__}, not a torch Dataset or a mapping of them")
    return given


def parts_of(given: Given | Mapping[str, Given]) -> dict[Split, Part]:
    """The parts of a mapping; a single Dataset or pair becomes the train part."""
    named = given if isinstance(given, Mapping) else {"train": given}
    known = [split.value for split in Split if split is not Split.UNKNOWN]
    for name in named:
        if name not in known:
            raise unknown("part of a data set", str(name), known)
    return {Split(name): convert(dataset, Split(name)) for name, dataset in named.items()}


def convert(dataset: Given, split: Split) -> Part:
    """A Dataset or a pair of arrays as a part. Items of equal size are stacked; others stay in the Dataset."""
    if isinstance(dataset, tuple):
        if len(dataset) != 2:
            raise InputError(f"{split}: {len(dataset)} arrays; pass a pair (x, y) of inputs and labels")
        dataset = _paired(*dataset, split)
    if not hasattr(dataset, "__len__"):
        raise InputError(f"{type(dataset).__name__} has no length; a data set needs __len__ and __getitem__")
    n = len(dataset)
    if n == 0:
        raise InputError(f"the {split} data set is empty")
    labels: list[int | Tensor] = []
    inputs: list[Tensor] = []
    equal = True
    for i in _progress(n, split):
        with users_code(f"reading item {i} of the {split} data set"):
            item = dataset[i]
        x, y = as_item(item, i)
        _check_same_kind(y, labels[0] if labels else y, i, split)
        equal = equal and x.shape == (inputs[0].shape if inputs else x.shape)
        labels.append(y)
        if equal:
            inputs.append(x)
    maps = [y for y in labels if isinstance(y, Tensor)]
    y_all = torch.stack(maps) if maps else torch.tensor(labels)
    if maps and not equal:
        raise InputError(f"{split}: images with maps of labels must be of one size; resize them in the Dataset")
    if not equal:
        return Part(torch.empty(0), y_all, torch.arange(n), split, dataset)
    return Part(torch.stack(inputs), y_all, torch.arange(n), split)


def _paired(x: Any, y: Any, split: Split) -> Dataset[Any]:
    x, y = tensors.as_tensor(x, "x"), tensors.as_tensor(y, "labels")
    if len(x) != len(y):
        raise InputError(f"{split}: {len(x)} items and {len(y)} labels; pass one label per item")
    return TensorDataset(x, y)


def _check_same_kind(y: int | Tensor, first: int | Tensor, place: int, split: Split) -> None:
    """All labels must be numbers, or maps of one size."""
    kind, other = (f"a map of {tuple(v.shape)}" if isinstance(v, Tensor) else "one class number" for v in (y, first))
    if kind != other:
        raise InputError(f"{split}: the label of item {place} is {kind}, that of item 0 {other}; make them alike")


def _progress(n: int, split: Split) -> Any:
    if n < QUIET_BELOW:
        return range(n)
    from rich.console import Console
    from rich.progress import track

    return track(range(n), description=f"reading {split}", console=Console(stderr=True))
