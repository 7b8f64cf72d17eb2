"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): packed mosaics, or one of the two official archives.

mosaics: {train,test}_NN.webp, lossless, 50 × 50 images each, row by row; labels.npz with y_train, y_test and classes.
python:  cifar-10-batches-py/{data_batch_1 … 5, test_batch}, cifar-100-python/{train, test}: a dict with b"data" (uint8
         [N, 3072], red plane, green, blue) and b"labels" or b"fine_labels". The unpickler admits numpy arrays only.
binary:  cifar-10-batches-bin/*.bin (label, 3072 bytes), cifar-100-binary/{train,test}.bin (coarse, fine, 3072 bytes).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.data.image_arrays import read_arrays
from calibrant.data.records import HELD_OUT, DatasetSpec, Layout, Part, Raw, numbered_classes, one_reader
from calibrant.errors import FileError
from calibrant.files.paths import existing, readable, visible
from calibrant.types import Split

EDGE, TILES = 32, 50
PIXELS = 3 * EDGE * EDGE
ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}
CIFAR10_FILES = {Split.TRAIN: tuple(f"data_batch_{i}" for i in range(1, 6)), Split.TEST: ("test_batch",)}
CIFAR100_FILES = {Split.TRAIN: ("train",), Split.TEST: ("test",)}


class ArraysOnly(pickle.Unpickler):
    """Loads plain containers and numpy arrays; refuses everything else before it is imported."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise FileError(f"a CIFAR file holds numpy arrays only, and this one asks for {module}.{name}: not read")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def unpickle(path: Path) -> dict[bytes, Any]:
    with readable(path, "this pickle"):
        raw = path.read_bytes()
        try:
            held = ArraysOnly(io.BytesIO(raw), encoding="bytes").load()
        except FileError as error:
            raise FileError(f"{path}: {error}") from error
    if not isinstance(held, dict):
        raise FileError(f"{path}: holds a {type(held).__name__} instead of a dict")
    return {k.encode() if isinstance(k, str) else k: v for k, v in held.items()}


def read_pickle(path: Path, key: bytes) -> tuple[Tensor, Tensor]:
    held = unpickle(path)
    if b"data" not in held or key not in held:
        raise FileError(f"{path}: has no {key.decode()!r} and 'data'")
    return _images(np.asarray(held[b"data"]), np.asarray(held[key]), path)


def read_binary(path: Path, labels: int) -> tuple[Tensor, Tensor]:
    """`labels`: label bytes before each image; the last of them is the fine label."""
    raw = np.frombuffer(existing(path).read_bytes(), np.uint8)
    if raw.size % (PIXELS + labels):
        raise FileError(f"{path}: {raw.size} bytes are not whole records of {PIXELS + labels}; fetch it again")
    rows = raw.reshape(-1, PIXELS + labels)
    return _images(rows[:, labels:], rows[:, labels - 1], path)


def _images(data: Any, labels: Any, path: Path) -> tuple[Tensor, Tensor]:
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS or data.shape[0] != labels.shape[0]:
        raise FileError(f"{path}: images {data.dtype} {data.shape} and labels {labels.shape} are not CIFAR's")
    x = np.ascontiguousarray(data).reshape(-1, 3, 32, 32)
    return torch.from_numpy(x.copy()), torch.from_numpy(labels.astype(np.int64))


def mosaics(folder: str) -> Layout:
    names = ["labels.npz", *(f"train_{i:02d}.webp" for i in range(20)), *(f"test_{i:02d}.webp" for i in range(4))]
    source = "lossless mosaics, 2,500 images per WebP file, with labels.npz"
    return Layout(tuple(f"{folder}/{name}" for name in names), partial(read_mosaics, folder=folder), source)


def read_mosaics(root: Path, folder: str) -> Raw:
    labels = read_arrays(root / folder / "labels.npz", ("y_train", "y_test"))
    parts = {}
    for split, key in ((Split.TRAIN, "train"), (Split.TEST, "test")):
        with ThreadPoolExecutor() as threads:  # decoding releases the interpreter lock
            x = torch.cat(list(threads.map(tiles, visible(root / folder, f"{key}_*.webp"))))
        y = torch.from_numpy(labels[f"y_{key}"].astype(np.int64))
        if x.shape[0] != y.shape[0]:
            raise FileError(f"{root / folder}: {x.shape[0]} {key} images but {y.shape[0]} labels; fetch it again")
        parts[split] = Part.of(x, y, split)
    names = tuple(str(name) for name in labels["classes"]) if "classes" in labels else None
    return Raw(parts, names)


def tiles(path: Path, edge: int = EDGE) -> Tensor:
    """One mosaic → uint8 [N, 3, edge, edge], row-major."""
    from PIL import Image

    with readable(path, "this image"), Image.open(path) as image:
        mosaic = np.asarray(image.convert("RGB"))
    rows, columns = mosaic.shape[0] // edge, mosaic.shape[1] // edge
    if columns != TILES or mosaic.shape[0] % edge:
        raise FileError(f"{path}: {mosaic.shape[1]}×{mosaic.shape[0]} pixels are not rows of {TILES} tiles of {edge}")
    x = mosaic.reshape(rows, edge, columns, edge, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, edge, edge)
    return torch.from_numpy(np.ascontiguousarray(x))


def official(
    name: str, files: Mapping[Split, tuple[str, ...]], python: str, key: bytes, binary: str, labels: int
) -> tuple[Layout, ...]:
    """The mosaics, then the two official archives of `name`, unpacked into the folders `python` and `binary`."""
    archive = name.replace("cifar", "cifar-")
    bins = {split: tuple(f"{file}.bin" for file in group) for split, group in files.items()}
    return (
        mosaics(name),
        one_reader(python, files, partial(read_pickle, key=key), f"{archive}-python.tar.gz, unpacked"),
        one_reader(binary, bins, partial(read_binary, labels=labels), f"{archive}-binary.tar.gz, unpacked"),
    )


CIFAR10 = DatasetSpec(
    name="cifar10",
    title="60,000 colour images of 32 × 32, 10 classes",
    layouts=official("cifar10", CIFAR10_FILES, "cifar-10-batches-py", b"labels", "cifar-10-batches-bin", 1),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    shape=(3, 32, 32),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    sizes=HELD_OUT,
)
CIFAR100 = DatasetSpec(
    name="cifar100",
    title="60,000 colour images of 32 × 32, 100 classes",
    layouts=official("cifar100", CIFAR100_FILES, "cifar-100-python", b"fine_labels", "cifar-100-binary", 2),
    classes=numbered_classes(100),
    shape=(3, 32, 32),
    mean=(0.5070, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2761),
    sizes=HELD_OUT,
)
