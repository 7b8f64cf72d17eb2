"""A re-collected test set as a user has it: one file of images and labels, a published folder, or a folder of classes.

CIFAR-10.1 is `cifar10.1_v6_data.npy` with `cifar10.1_v6_labels.npy` (v4 likewise), CIFAR-10.2 `cifar102_test.npz`;
ImageNet-v2 is a folder of classes named 0 … 999, which count by value and not by the alphabet.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from calibrant.data.folder import CUT_FROM, SUFFIXES, parts_of_folder
from calibrant.data.label_maps import ignoring
from calibrant.data.records import MOST_CLASSES, Data, Part, numbered
from calibrant.data.relabelled import relabelled
from calibrant.data.shifted import read_set
from calibrant.errors import FileError, InputError
from calibrant.files.damage import readable
from calibrant.files.listing import visible
from calibrant.types import Split

PUBLISHED = ("cifar10.1_v6_data.npy", "cifar10.1_v4_data.npy", "cifar102_test.npz")
"""What a published folder holds, the first that is there; another version is named by its file."""
LOOKED_AT = 50


def read_part(path: Path, classes: Sequence[str], shape: Sequence[int]) -> Part:
    """The items, labelled as the classifier's `classes` are numbered; folders of images are brought to `shape`."""
    if path.is_dir():
        held = [path / sub / name for name in PUBLISHED for sub in ("", "datasets")]
        inside = next((file for file in held if file.is_file()), None)
        if inside is None:
            return _folder(path, classes, shape)
        path = inside
    x, y = read_set(path, len(classes))
    if tuple(x.shape[1:]) != tuple(shape):
        raise FileError(f"{path}: images are {tuple(x.shape[1:])}, the classifier's are {tuple(shape)}")
    return Part(x, y, torch.arange(len(y)), Split.TEST)


def file_set(path: Path, classes: Sequence[str] | None, *, maps: bool = False, ignore_index: int | None = None) -> Data:
    """A file of images and labels as a data set that is all test; classes that nobody names are numbered.

    `maps`: labels may be [N, H, W], a class for each pixel; `ignore_index` marks those without one, besides −1.
    """
    x, y = read_set(path, MOST_CLASSES if classes is None else len(classes), maps=maps, ignore_index=ignore_index)
    names = tuple(classes) if classes is not None else numbered(1 + int(y.max()))
    parts = ignoring({Split.TEST: Part(x, y, torch.arange(len(y)), Split.TEST)}, ignore_index, str(path))
    return Data(path.name, parts, names, tuple(x.shape[1:]))


def native(path: Path) -> tuple[int, int, int] | None:
    """The shape that small images of a folder have in common (of some `LOOKED_AT` of them); None where they have not,
    and of what is no folder.

    A network that does not say its input's size gets small images as they are, instead of enlarged to ImageNet's 224.
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


def _folder(path: Path, classes: Sequence[str], shape: Sequence[int]) -> Part:
    parts, names = parts_of_folder(path, shape)
    if Split.TEST not in parts:
        raise InputError(f"{path}: has no test part; name the folder of the part that is meant")
    return relabelled(Data(str(path), parts, names, tuple(shape)), classes)["test"]
