"""What loading gives: `Data`, whose `splits` are disjoint `Part`s, each tagged and traceable to the original items."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.types import Split

Size = int | float
"""Number of items, or a fraction of the official training set."""


@dataclass(frozen=True, eq=False)
class Part:
    """Items of one split. `index` is the place in the official training set (or test set, for official test items)."""

    x: Tensor  # uint8 [N, C, H, W]; float for general inputs; long [N, L] tokens; empty when `items` serves them
    y: Tensor  # long [N], or [N, H, W] for labelled images, negative where a pixel is to be ignored
    index: Tensor
    split: Split = Split.UNKNOWN
    items: Any = None  # a torch Dataset whose items are not equal-sized or too many to hold; item i of it has place i

    @property
    def n(self) -> int:
        return int(self.y.shape[0])

    def __len__(self) -> int:
        return self.n

    def take(self, chosen: Tensor, split: Split) -> Part:
        """The items at `chosen` under another tag; `index` keeps pointing at the original ones."""
        lazy = self.items is not None
        return Part(self.x if lazy else self.x[chosen], self.y[chosen], self.index[chosen], split, self.items)


@dataclass(frozen=True, eq=False)
class Data:
    """A data set, split. `mean` and `std` are per channel, of bytes scaled to [0, 1] or of floats as they are."""

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
                f"{self.name} has no {split} part (it has {held}); ask for one by sizes={{{str(split)!r}: N}}"
            )
        return self.splits[Split(split)]


@dataclass(frozen=True, eq=False)
class Raw:
    """What a reader returns: the official parts, (x, y) each, and the names of classes if the files carry them.

    Parts that are too large to hold are `lazy` ones instead.
    """

    parts: Mapping[Split, tuple[Tensor, Tensor]]
    classes: tuple[str, ...] | None = None
    lazy: Mapping[Split, Part] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """One way a data set lies on disk: `files` under the root, what reads them, where they come from."""

    files: tuple[str, ...]
    read: Callable[[Path], Raw]
    source: str


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


MOST_CLASSES = 1 << 20
"""Beyond this a label is a mark or a mistake, and not the number of a class."""


def numbered(k: int) -> tuple[str, ...]:
    if k > MOST_CLASSES:
        raise InputError(
            f"a label is {k - 1}, which would make {k:,} classes; number them 0, 1, …, or, if it marks pixels "
            f"without a class, say ignore_index={k - 1} (--ignore-index)"
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
