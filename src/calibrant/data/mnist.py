"""MNIST (LeCun 1998) and Fashion-MNIST (Xiao 2017): the official idx files, or all arrays in one npz.

An idx file has two zero bytes, a type (8: uint8), the number of axes, each length as a big-endian integer, then the
data. An npz has x_train, y_train, x_test, y_test, images [N, 28, 28].
"""

from __future__ import annotations

import gzip
import math
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrant.data.image_arrays import check_images, read_arrays, to_images, with_labels
from calibrant.data.records import HELD_OUT, DatasetSpec, Layout, Part, Raw, numbered_classes
from calibrant.errors import FileError
from calibrant.files.paths import readable
from calibrant.types import Split

CLASSES = 10
IDX_FILES = {
    Split.TRAIN: ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    Split.TEST: ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def layouts(name: str, gzipped: str = "the official idx files, gzipped") -> tuple[Layout, ...]:
    npz = f"{name}/{name}.npz"
    plain, zipped = (
        [f"{name}/{file}{suffix}" for pair in IDX_FILES.values() for file in pair] for suffix in ("", ".gz")
    )
    return (
        Layout((npz,), partial(_read_npz, file=npz), "x_train, y_train, x_test, y_test in one npz"),
        Layout(tuple(plain), partial(_read_idx_files, folder=name, suffix=""), "the official idx files"),
        Layout(tuple(zipped), partial(_read_idx_files, folder=name, suffix=".gz"), gzipped),
    )


def _read_npz(root: Path, file: str) -> Raw:
    held = read_arrays(root / file, ("x_train", "y_train", "x_test", "y_test"))
    parts = {}
    for split, key in ((Split.TRAIN, "train"), (Split.TEST, "test")):
        x = to_images(check_images(held[f"x_{key}"], root / file))
        parts[split] = Part.of(*with_labels(x, held[f"y_{key}"], CLASSES, root / file), split)
    return Raw(parts)


def _read_idx_files(root: Path, folder: str, suffix: str) -> Raw:
    parts = {}
    for split, names in IDX_FILES.items():
        images, labels = (root / folder / f"{name}{suffix}" for name in names)
        x = to_images(check_images(read_idx(images), images))
        parts[split] = Part.of(*with_labels(x, read_idx(labels), CLASSES, labels), split)
    return Raw(parts)


def read_idx(path: Path) -> NDArray[np.uint8]:
    with readable(path, "this file"):
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    start = 4 + 4 * raw[3] if len(raw) >= 4 else 4
    if len(raw) < start or raw[:3] != b"\0\0\x08":
        raise FileError(f"{path}: not an idx file of unsigned bytes")
    shape = [int.from_bytes(raw[i : i + 4], "big") for i in range(4, start, 4)]
    data = np.frombuffer(raw, np.uint8, offset=start)
    if data.size != math.prod(shape):
        raise FileError(f"{path}: {data.size} bytes where the header promises {math.prod(shape)}; fetch it again")
    return data.reshape(shape).copy()


MNIST = DatasetSpec(
    name="mnist",
    title="70,000 handwritten digits of 28 × 28",
    layouts=layouts("mnist"),
    classes=numbered_classes(CLASSES),
    shape=(1, 28, 28),
    mean=(0.1307,),
    std=(0.3081,),
    sizes=HELD_OUT,
)
FASHION_MNIST = DatasetSpec(
    name="fashion_mnist",
    title="70,000 pieces of clothing, 28 × 28",
    layouts=layouts("fashion_mnist", "the official idx files, gzipped (Debian: dataset-fashion-mnist)"),
    classes=(
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    shape=(1, 28, 28),
    mean=(0.2860,),
    std=(0.3530,),
    sizes=HELD_OUT,
)  # fmt: skip
