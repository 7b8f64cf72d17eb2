"""A user's own `torch.utils.data.Dataset` or pair of arrays (x, y), or a mapping of them, as parts.

In a recipe it is `package.module:factory`. One Dataset is split in four, as digits are; a mapping {"train": …, "test":
…} keeps its parts. Items are (x, y): x is a PIL image, a tensor or an array ([C, H, W], [H, W] or [D]); y is a class
number, or a map of them [H, W] with −1 where a pixel has no class (`label_maps`). Items of equal size are stacked once
and kept on the device; others stay in the Dataset and are fetched batch by batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from calibrant.data.factory import call_factory
from calibrant.data.label_maps import as_map
from calibrant.data.records import Part
from calibrant.errors import CalibrantError, InputError, unknown
from calibrant.functional import tensors
from calibrant.types import Split

LONG = 60  # characters of a label that an error shows
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
        try:
            item = dataset[i]
        except CalibrantError:
            raise
        except Exception as error:  # the user's code
            raise InputError(f"item {i} of the {split} data set: {type(error).__name__}: {error}") from error
        x, y = as_item(item, i)
        _alike(y, labels[0] if labels else y, i, split)
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


def _alike(y: int | Tensor, first: int | Tensor, place: int, split: Split) -> None:
    """All labels must be numbers, or maps of one size."""
    here, there = (f"a map of {tuple(v.shape)}" if isinstance(v, Tensor) else "one class number" for v in (y, first))
    if here != there:
        raise InputError(f"{split}: the label of item {place} is {here}, that of item 0 {there}; make them alike")


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


def _progress(n: int, split: Split) -> Any:
    if n < QUIET_BELOW:
        return range(n)
    from rich.console import Console
    from rich.progress import track

    return track(range(n), description=f"reading {split}", console=Console(stderr=True))
