"""Folders of images, one per class (ImageNet, ImageNet-v2, a user's own): decoded when needed, by worker processes.

`FOLDER/CLASS/*.jpg`; classes are numbered in the order of their names, by value if all names are numbers (ImageNet-v2).
Each image is scaled so that its shorter side is `resize`, and the middle `size` × `size` is cut out: the usual
evaluation (256 and 224; small images are not cut).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from calibrant.data.image_arrays import read_set
from calibrant.data.records import Data, Part
from calibrant.errors import FileError, InputError
from calibrant.files.paths import readable, visible
from calibrant.types import Split

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm"}
PARTS = {"train": Split.TRAIN, "val": Split.VALIDATION, "validation": Split.VALIDATION, "test": Split.TEST}
CUT_FROM = 128
"""Images of at least this size are cut to the middle 7/8; smaller ones are used whole."""
PUBLISHED = ("cifar10.1_v6_data.npy", "cifar10.1_v4_data.npy", "cifar102_test.npz")
"""Files of a published folder, in order of preference; pass the path of another version itself."""
SHOWN = 5  # classes in an error message
LOOKED_AT = 50  # images whose size is read


@dataclass(eq=False)
class ImageFolder(Dataset[Any]):
    """Item i is (uint8 [channels, size, size], class). `workers` processes decode."""

    folder: Path
    size: int = 224
    resize: int = 256
    channels: int = 3
    workers: int = field(default_factory=lambda: min(8, os.cpu_count() or 1), repr=False)
    classes: tuple[str, ...] = field(init=False)
    files: list[tuple[Path, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = [path.name for path in visible(self.folder) if path.is_dir()]
        numbers = all(name.isdigit() for name in names)
        self.classes = tuple(sorted(names, key=int) if numbers else sorted(names))
        self.files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in visible(self.folder / name)
            if path.suffix.lower() in SUFFIXES
        ]
        if not self.files:
            raise FileError(f"{self.folder}: has no images in folders of classes (FOLDER/CLASS/image.jpg)")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        path, label = self.files[place]
        return decode(path, self.size, self.resize, self.channels), label

    def part(self, split: Split) -> Part:
        """All items; none is decoded yet."""
        labels = torch.tensor([label for _, label in self.files])
        return Part(torch.empty(0), labels, torch.arange(len(self.files)), split, self)


def decode(path: Path, size: int, resize: int, channels: int = 3) -> Tensor:
    """One image in colour or grey, its shorter side scaled to `resize` and its middle cut out."""
    from PIL import Image

    with readable(path, "this image"), Image.open(path) as opened:
        image = opened.convert("RGB" if channels == 3 else "L")
    scale = resize / min(image.size)
    width, height = (max(size, round(edge * scale)) for edge in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    pixels = np.array(image.crop((left, top, left + size, top + size)))
    return torch.from_numpy(pixels).reshape(size, size, channels).permute(2, 0, 1)


def parts_of_folder(
    folder: Path, shape: Sequence[int], alone: Split = Split.TEST
) -> tuple[dict[Split, Part], tuple[str, ...]]:
    """`FOLDER/{train,val,test}/CLASS/…` keeps its parts; `FOLDER/CLASS/…` is the one part `alone`."""
    inner = {split: folder / name for name, split in PARTS.items() if (folder / name).is_dir()}
    return read_folders(folder, inner or {alone: folder}, shape)


def read_folders(
    folder: Path, inner: Mapping[Split, Path], shape: Sequence[int]
) -> tuple[dict[Split, Part], tuple[str, ...]]:
    channels, size = channels_and_size(folder, shape)
    resize = round(size * 8 / 7) if size >= CUT_FROM else size
    sets = {split: ImageFolder(path, size, resize, channels) for split, path in inner.items()}
    names = {found.classes for found in sets.values()}
    if len(names) > 1:
        raise FileError(f"{folder}: its parts have different classes; every part needs a folder for each class")
    return {split: found.part(split) for split, found in sets.items()}, names.pop()


def channels_and_size(folder: Path, shape: Sequence[int]) -> tuple[int, int]:
    """Return (channels, size) of the square images of a folder; any other shape is refused."""
    if len(shape) != 3 or shape[0] not in (1, 3) or shape[1] != shape[2]:
        raise InputError(f"{folder}: a folder of images gives [1 or 3, size, size], but the model takes {list(shape)}")
    return shape[0], shape[1]


def common_shape(path: Path) -> tuple[int, int, int] | None:
    """The shape that the small square images of a folder share; None if they differ, or if this is not a folder.

    A network that does not state the size of its input then gets small images as they are, not enlarged to 224 × 224.
    """
    from PIL import Image

    if not path.is_dir():
        return None
    files = [p for p in visible(path, "**/*") if p.suffix.lower() in SUFFIXES]
    shapes = set()
    for file in files[:: max(1, len(files) // LOOKED_AT)]:
        with readable(file, "this image"), Image.open(file) as image:
            shapes.add((1 if image.mode == "L" else 3, image.height, image.width))
    if len(shapes) != 1:
        return None
    (shape,) = shapes
    return shape if shape[1] == shape[2] < CUT_FROM else None


def match_classes(data: Data, classes: Sequence[str]) -> Data:
    """The same items, with the class numbers of a model whose classes are `classes`.

    A network trained on CIFAR-10 numbers cats 3; a folder with `cat` and `dog` numbers them 0. Sub-folders are matched
    by name, or by number if all their names are numbers below K. Anything else is an error: numbered in the order of
    names, the labels would be wrong without notice.
    """
    names = list(classes)
    if all(name in names for name in data.classes):
        numbers = [names.index(name) for name in data.classes]
    elif all(name.isdigit() and int(name) < len(names) for name in data.classes):
        numbers = [int(name) for name in data.classes]
    else:
        stranger = next(name for name in data.classes if name not in names)
        shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
        raise InputError(
            f"{data.name}: the folder {stranger!r} is not a class of the model ({shown}); "
            "name its sub-folders after the classes, or number them from 0"
        )
    if numbers == list(range(len(names))):
        return replace(data, classes=tuple(names))
    new = torch.tensor(numbers)
    return replace(
        data,
        splits={split: replace(part, y=new[part.y]) for split, part in data.splits.items()},
        classes=tuple(names),
    )


def read_part(path: Path, classes: Sequence[str], shape: Sequence[int]) -> Part:
    """The items of a user's test set, with labels that are numbers of `classes`.

    The set is a file of arrays, a published folder, or a folder with one sub-folder per class.

    CIFAR-10.1 is `cifar10.1_v6_data.npy` with `cifar10.1_v6_labels.npy` (v4 likewise), CIFAR-10.2 `cifar102_test.npz`.
    Image files are brought to `shape`; arrays must have it.
    """
    if path.is_dir():
        held = [path / sub / name for name in PUBLISHED for sub in ("", "datasets")]
        inside = next((file for file in held if file.is_file()), None)
        if inside is None:
            return _labelled_test(path, classes, shape)
        path = inside
    x, y = read_set(path, len(classes))
    if tuple(x.shape[1:]) != tuple(shape):
        raise FileError(f"{path}: images are {tuple(x.shape[1:])}, the classifier's are {tuple(shape)}")
    return Part.of(x, y, Split.TEST)


def _labelled_test(path: Path, classes: Sequence[str], shape: Sequence[int]) -> Part:
    parts, names = parts_of_folder(path, shape)
    if Split.TEST not in parts:
        raise InputError(f"{path}: has no test part; pass the folder of the part you mean")
    return match_classes(Data(str(path), parts, names, tuple(shape)), classes)["test"]
