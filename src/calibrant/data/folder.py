"""Folders of images, a class each (ImageNet, ImageNet-v2, anyone's own): decoded when needed, by worker processes.

`FOLDER/CLASS/*.jpg`; classes are numbered in the order of their names, by value where all names are numbers
(ImageNet-v2). Each image is scaled so that its shorter side is `resize`, and the middle `size` × `size` is taken: the
usual evaluation (256 and 224; small images are not cut).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from calibrant.data.records import Layout, Part, Raw
from calibrant.errors import FileError, InputError
from calibrant.files.damage import readable
from calibrant.files.listing import visible
from calibrant.types import Split

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm"}
PARTS = {"train": Split.TRAIN, "val": Split.VALIDATION, "validation": Split.VALIDATION, "test": Split.TEST}
IMAGENET_SHAPE = (3, 224, 224)
CUT_FROM = 128
"""Networks for images of at least this edge see the middle 7/8 of an image; smaller ones see all of it."""


@dataclass(eq=False)
class ImageFolder(Dataset[Any]):
    """Item i is (uint8 [channels, size, size], class). `workers` processes decode; nobody waits for one image."""

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
        """All items, without decoding one."""
        labels = torch.tensor([label for _, label in self.files])
        return Part(torch.empty(0), labels, torch.arange(len(self.files)), split, self)


def decode(path: Path, size: int, resize: int, channels: int = 3) -> Tensor:
    """One image, its shorter side scaled to `resize`, its middle cut out, in colour or grey."""
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
    folder: Path, shape: Sequence[int] = IMAGENET_SHAPE, alone: Split = Split.TEST
) -> tuple[dict[Split, Part], tuple[str, ...]]:
    """`FOLDER/{train,val,test}/CLASS/…` keeps its parts; `FOLDER/CLASS/…` is one part, `alone`."""
    inner = {split: folder / name for name, split in PARTS.items() if (folder / name).is_dir()}
    return _parts(folder, inner or {alone: folder}, shape)


def _parts(folder: Path, inner: dict[Split, Path], shape: Sequence[int]) -> tuple[dict[Split, Part], tuple[str, ...]]:
    if len(shape) != 3 or shape[0] not in (1, 3) or shape[1] != shape[2]:
        raise InputError(f"{folder}: a folder of images gives [1 or 3, size, size], but the model takes {list(shape)}")
    channels, size, _ = shape
    resize = round(size * 8 / 7) if size >= CUT_FROM else size
    sets = {split: ImageFolder(path, size, resize, channels) for split, path in inner.items()}
    names = {found.classes for found in sets.values()}
    if len(names) > 1:
        raise FileError(f"{folder}: its parts have different classes; every part needs a folder for each class")
    return {split: found.part(split) for split, found in sets.items()}, names.pop()


def _imagenet(root: Path) -> Raw:
    """The official validation images are what papers test on; without `train` there is nothing to train on."""
    inner = {Split.TEST: root / "imagenet" / "val"}
    if (root / "imagenet" / "train").is_dir():
        inner[Split.TRAIN] = root / "imagenet" / "train"
    found, classes = _parts(root / "imagenet", inner, IMAGENET_SHAPE)
    return Raw({}, classes, found)


def _imagenet_v2(root: Path) -> Raw:
    found, classes = _parts(root / V2, {Split.TEST: root / V2}, IMAGENET_SHAPE)
    return Raw({}, classes, found)


V2 = "imagenetv2-matched-frequency-format-val"
IMAGENET = Layout(
    ("imagenet/val",), _imagenet, "ILSVRC 2012 as folders of classes, CLASS/*.JPEG; imagenet/train likewise"
)
IMAGENET_V2 = Layout((V2,), _imagenet_v2, "imagenetv2-matched-frequency.tar.gz, unpacked")
