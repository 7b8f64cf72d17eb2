"""Folders of images, a class each (ImageNet, ImageNet-v2, anyone's own): decoded when needed, by worker processes.

`FOLDER/CLASS/*.jpg`; classes are numbered in the order of their names, by value where all names are numbers
(ImageNet-v2). Each image is scaled so that its shorter side is `resize`, and the middle `size` × `size` is taken: the
usual evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from calibrant.data.records import Part
from calibrant.errors import FileError
from calibrant.types import Split

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".ppm"}
PARTS = {"train": Split.TRAIN, "val": Split.VALIDATION, "validation": Split.VALIDATION, "test": Split.TEST}


@dataclass(eq=False)
class ImageFolder(Dataset[Any]):
    """Item i is (uint8 [3, size, size], class)."""

    folder: Path
    size: int = 224
    resize: int = 256
    classes: tuple[str, ...] = field(init=False)
    files: list[tuple[Path, int]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        names = [path.name for path in self.folder.iterdir() if path.is_dir()]
        numbers = all(name.isdigit() for name in names)
        self.classes = tuple(sorted(names, key=int) if numbers else sorted(names))
        self.files = [
            (path, label)
            for label, name in enumerate(self.classes)
            for path in sorted((self.folder / name).iterdir())
            if path.suffix.lower() in SUFFIXES
        ]
        if not self.files:
            raise FileError(f"{self.folder}: has no images in folders of classes (FOLDER/CLASS/image.jpg)")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        path, label = self.files[place]
        return decode(path, self.size, self.resize), label

    def part(self, split: Split) -> Part:
        """All items, without decoding one."""
        labels = torch.tensor([label for _, label in self.files])
        return Part(torch.empty(0), labels, torch.arange(len(self.files)), split, self)


def decode(path: Path, size: int, resize: int) -> Tensor:
    """One image, its shorter side scaled to `resize`, its middle cut out."""
    from PIL import Image

    try:
        with Image.open(path) as opened:
            image = opened.convert("RGB")
    except OSError as error:
        raise FileError(f"{path}: not a readable image ({error})") from error
    scale = resize / min(image.size)
    width, height = (max(size, round(edge * scale)) for edge in image.size)
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    pixels = np.array(image.crop((left, top, left + size, top + size)))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def parts_of_folder(folder: Path, size: int = 224, resize: int = 256) -> tuple[dict[Split, Part], tuple[str, ...]]:
    """`FOLDER/{train,val,test}/CLASS/…` keeps its parts; `FOLDER/CLASS/…` is one part to test on."""
    inner = {split: folder / name for name, split in PARTS.items() if (folder / name).is_dir()}
    sets = {split: ImageFolder(path, size, resize) for split, path in (inner or {Split.TEST: folder}).items()}
    names = {found.classes for found in sets.values()}
    if len(names) > 1:
        raise FileError(f"{folder}: its parts have different classes; every part needs a folder for each class")
    return {split: found.part(split) for split, found in sets.items()}, names.pop()
