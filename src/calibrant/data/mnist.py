"""MNIST (LeCun 1998) and Fashion-MNIST (Xiao 2017): the official idx files, or all arrays in one npz.

An idx file has two zero bytes, a type (8: uint8), the number of axes, each length as a big-endian integer, then the
data. An npz has x_train, y_train, x_test, y_test, images [N, 28, 28].
"""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.data.image_arrays import read_arrays, to_images
from calibrant.data.records import HELD_OUT, DatasetSpec, Layout, Part, Raw, numbered_classes
from calibrant.errors import FileError
from calibrant.files.paths import readable
from calibrant.types import Split

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
        parts[split] = Part.of(to_images(held[f"x_{key}"]), torch.from_numpy(held[f"y_{key}"]), split)
    return Raw(parts)


def _read_idx_files(root: Path, folder: str, suffix: str) -> Raw:
    parts = {}
    for split, names in IDX_FILES.items():
        x, y = (read_idx(root / folder / f"{name}{suffix}") for name in names)
        parts[split] = Part.of(x.unsqueeze(1), y, split)
    return Raw(parts)


def read_idx(path: Path) -> Tensor:
    with readable(path, "this file"):
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise FileError(f"{path}: not an idx file of unsigned bytes")
    axes = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * i : 8 + 4 * i], "big") for i in range(axes)]
    data = np.frombuffer(raw, np.uint8, offset=4 + 4 * axes)
    if data.size != np.prod(shape):
        raise FileError(f"{path}: {data.size} bytes where the header promises {int(np.prod(shape))}; fetch it again")
    return torch.from_numpy(data.reshape(shape).copy())


MNIST = DatasetSpec(
    name="mnist",
    title="70,000 handwritten digits of 28 × 28",
    layouts=layouts("mnist"),
    classes=numbered_classes(10),
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
