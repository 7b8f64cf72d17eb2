"""What loading returns (`Data`, whose `splits` are disjoint `Part`s), and what the reader of a data set provides.

A data set is a `DatasetSpec`: its constants, and one `Layout` for each way its files may lie on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.data.items import stack_inputs
from calibrant.errors import FileError, InputError
from calibrant.types import Split

Size = int | float
"""A number of items, or a fraction of the official training set."""

HELD_OUT: Mapping[str, Size] = {"validation": 5000, "calibration": 5000}
"""What is usually cut from a training set of 50,000 items or more."""


@dataclass(frozen=True, eq=False)
class Part:
    """Items of one split. `index` is the place in the official training set (or test set, for official test items)."""

    x: Tensor  # uint8 [N, C, H, W]; float for general inputs; long [N, L] tokens; empty when `items` serves them
    y: Tensor  # long [N], or [N, H, W] for labelled images, negative where a pixel is to be ignored
    index: Tensor
    split: Split = Split.UNKNOWN
    items: Any = None  # a torch Dataset whose items differ in size or do not fit in memory; its item i has index i

    @classmethod
    def of(cls, x: Tensor, y: Tensor, split: Split) -> Part:
        """All items of a set, numbered from 0."""
        return cls(x, y.long(), torch.arange(len(y)), split)

    @property
    def n(self) -> int:
        return int(self.y.shape[0])

    def __len__(self) -> int:
        return self.n

    def take(self, chosen: Tensor, split: Split) -> Part:
        """The items at `chosen`, tagged as `split`; `index` still refers to the original items."""
        lazy = self.items is not None
        return Part(self.x if lazy else self.x[chosen], self.y[chosen], self.index[chosen], split, self.items)

    def inputs(self, chosen: Tensor | slice) -> Tensor:
        """The inputs of the items at `chosen`, stacked; items that stay in their Dataset are read from it."""
        if self.items is None:
            return self.x[chosen]
        return stack_inputs(self.items[int(i)] for i in self.index[chosen])


@dataclass(frozen=True, eq=False)
class Data:
    """A data set, split. `mean` and `std` are per channel: of bytes scaled to [0, 1], or of unscaled floats."""

    name: str
    splits: Mapping[Split, Part]
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def k(self) -> int:
        return len(self.classes)

    def __getitem__(self, split: str) -> Part:
        if Split(split) not in self.splits:
            held = ", ".join(self.splits)
            raise InputError(
                f"{self.name} has no {split} part (it has {held}); ask for one with sizes={{{str(split)!r}: N}}"
            )
        return self.splits[Split(split)]


@dataclass(frozen=True, eq=False)
class Raw:
    """What a reader returns: the official parts, and the names of the classes if the files have them."""

    parts: Mapping[Split, Part]
    classes: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Layout:
    """One way a data set may lie on disk: `files` under the root, the function that reads them, where to get them."""

    files: tuple[str, ...]
    read: Callable[[Path], Raw]
    source: str


def one_reader(
    folder: str, files: Mapping[Split, Sequence[str]], read: Callable[[Path], tuple[Tensor, Tensor]], source: str
) -> Layout:
    """The layout of files that each hold images and labels: `read` returns (x, y) of one; a part joins its files."""

    def read_all(root: Path) -> Raw:
        parts = {}
        for split, names in files.items():
            pairs = [read(root / folder / name) for name in names]
            parts[split] = Part.of(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]), split)
        return Raw(parts)

    return Layout(tuple(f"{folder}/{name}" for names in files.values() for name in names), read_all, source)


@dataclass(frozen=True)
class DatasetSpec:
    """A named data set: its layouts in order of preference, its classes and constants, its default split sizes."""

    name: str
    title: str
    layouts: tuple[Layout, ...]
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    sizes: Mapping[str, Size] = field(default_factory=dict)


def check_parts(raw: Raw, spec: DatasetSpec) -> None:
    """Refuse files whose items do not have the shape and the classes of the data set."""
    classes = len(raw.classes or spec.classes)
    for split, part in raw.parts.items():
        where = f"the {split} part of {spec.name}"
        if part.n == 0:
            raise FileError(f"{where} is empty; fetch its files again")
        # scenes with a map of labels may have any size
        shape = spec.shape if part.y.ndim == 1 else (spec.shape[0], *part.y.shape[1:])
        if part.items is None and part.x.shape != (part.n, *shape):
            found = f"{len(part.x)} inputs of {list(part.x.shape[1:])} with {part.n} labels"
            raise FileError(f"{where} holds {found}; expected {list(shape)} and one label each")
        low, high = int(part.y.min()), int(part.y.max())
        if high >= classes or low < (0 if part.y.ndim == 1 else -1):
            wrong = high if high >= classes else low
            raise FileError(f"{where} has the label {wrong}; its classes are 0 … {classes - 1}")


def check_inputs(data: Data) -> None:
    """Refuse inputs that no training can use: single numbers, items of several sizes, values that are not finite."""
    if not data.shape:
        lazy = any(part.items is not None for part in data.splits.values())
        found = "differ in size; resize them in the Dataset" if lazy else "are single numbers; make them vectors [D]"
        raise InputError(f"to train on {data.name}, all items must have one shape, but they {found}")
    for split, part in data.splits.items():
        if part.items is not None:
            continue
        if part.x.shape[1:] != data.shape:
            sizes = f"{list(part.x.shape[1:])} in the {split} part and {list(data.shape)} in the training part"
            raise InputError(f"the items of {data.name} are {sizes}; give all parts the same shape")
        if part.x.is_floating_point():
            wrong = (~torch.isfinite(part.x)).flatten(1).any(1).nonzero()
            if len(wrong):
                place = int(part.index[wrong[0, 0]])
                raise InputError(f"item {place} of {data.name} ({split}) has NaN or infinity; replace such values")


MOST_CLASSES = 1 << 20
"""A larger label is a mark or a mistake, not a class."""


def numbered_classes(k: int) -> tuple[str, ...]:
    """The names "0", "1", … of k classes."""
    if k > MOST_CLASSES:
        raise InputError(
            f"a label is {k - 1}, which would make {k:,} classes; number them 0, 1, …, or, if it marks pixels "
            f"without a class, pass ignore_index={k - 1} (--ignore-index)"
        )
    return tuple(str(i) for i in range(k))


def channel_moments(x: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, in float64; uint8 counts as x/255. Constant channels get std 1."""
    scale = 255.0 if x.dtype == torch.uint8 else 1.0
    axes = tuple(i for i in range(x.ndim) if i != 1)
    chunks = [x[i : i + 4096].double() / scale for i in range(0, x.shape[0], 4096)]
    count = x.numel() / x.shape[1]
    mean = torch.stack([chunk.sum(axes) for chunk in chunks]).sum(0) / count
    centred = [(chunk - mean.reshape(-1, *[1] * (x.ndim - 2))).square().sum(axes) for chunk in chunks]
    std = (torch.stack(centred).sum(0) / count).sqrt()
    return tuple(mean.tolist()), tuple(torch.where(std > 0, std, 1.0).tolist())
