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

from calibrant.data.image_arrays import read_arrays, with_labels
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


def read_pickle(path: Path, key: bytes, classes: int) -> tuple[Tensor, Tensor]:
    held = unpickle(path)
    if b"data" not in held or key not in held:
        raise FileError(f"{path}: has no {key.decode()!r} and 'data'")
    return _planes(np.asarray(held[b"data"]), np.asarray(held[key]), classes, path)


def read_binary(path: Path, label_bytes: int, classes: int) -> tuple[Tensor, Tensor]:
    """Each image follows its label bytes, of which the last is the fine label."""
    raw = np.frombuffer(existing(path).read_bytes(), np.uint8)
    if raw.size % (PIXELS + label_bytes):
        raise FileError(f"{path}: {raw.size} bytes are not whole records of {PIXELS + label_bytes}; fetch it again")
    rows = raw.reshape(-1, PIXELS + label_bytes)
    return _planes(rows[:, label_bytes:], rows[:, label_bytes - 1], classes, path)


def _planes(data: Any, labels: Any, classes: int, path: Path) -> tuple[Tensor, Tensor]:
    """Rows of a red, a green and a blue plane as images, with their labels."""
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS:
        raise FileError(f"{path}: images {data.dtype} {data.shape} are not CIFAR's; expected bytes [N, {PIXELS}]")
    x = np.ascontiguousarray(data).reshape(-1, 3, EDGE, EDGE)
    return with_labels(torch.from_numpy(x.copy()), labels, classes, path)


def mosaics(folder: str, classes: int) -> Layout:
    names = ["labels.npz", *(f"train_{i:02d}.webp" for i in range(20)), *(f"test_{i:02d}.webp" for i in range(4))]
    read = partial(read_mosaics, folder=folder, classes=classes)
    source = "lossless mosaics, 2,500 images per WebP file, with labels.npz"
    return Layout(tuple(f"{folder}/{name}" for name in names), read, source)


def read_mosaics(root: Path, folder: str, classes: int) -> Raw:
    labels = read_arrays(root / folder / "labels.npz", ("y_train", "y_test"))
    parts = {}
    for split, key in ((Split.TRAIN, "train"), (Split.TEST, "test")):
        with ThreadPoolExecutor() as threads:  # decoding releases the interpreter lock
            x = torch.cat(list(threads.map(read_mosaic, visible(root / folder, f"{key}_*.webp"))))
        parts[split] = Part.of(
            *with_labels(x, labels[f"y_{key}"], classes, root / folder / f"labels.npz, {key}"), split
        )
    names = tuple(str(name) for name in labels["classes"]) if "classes" in labels else None
    return Raw(parts, names)


def read_mosaic(path: Path, edge: int = EDGE) -> Tensor:
    """One mosaic → uint8 [N, 3, edge, edge], row-major."""
    from PIL import Image

    with readable(path, "this image"), Image.open(path) as image:
        mosaic = np.asarray(image.convert("RGB"))
    rows, columns = mosaic.shape[0] // edge, mosaic.shape[1] // edge
    if columns != TILES or mosaic.shape[0] % edge:
        raise FileError(f"{path}: {mosaic.shape[1]}×{mosaic.shape[0]} pixels are not rows of {TILES} tiles of {edge}")
    x = mosaic.reshape(rows, edge, columns, edge, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, edge, edge)
    return torch.from_numpy(np.ascontiguousarray(x))


def layouts(
    name: str,
    classes: int,
    files: Mapping[Split, tuple[str, ...]],
    python: str,
    key: bytes,
    binary: str,
    label_bytes: int,
) -> tuple[Layout, ...]:
    """The mosaics, then the two official archives of `name`, unpacked into the folders `python` and `binary`."""
    archive = name.replace("cifar", "cifar-")
    bins = {split: tuple(f"{file}.bin" for file in group) for split, group in files.items()}
    return (
        mosaics(name, classes),
        one_reader(python, files, partial(read_pickle, key=key, classes=classes), f"{archive}-python.tar.gz, unpacked"),
        one_reader(
            binary,
            bins,
            partial(read_binary, label_bytes=label_bytes, classes=classes),
            f"{archive}-binary.tar.gz, unpacked",
        ),
    )


CIFAR10 = DatasetSpec(
    name="cifar10",
    title="60,000 colour images of 32 × 32, 10 classes",
    layouts=layouts("cifar10", 10, CIFAR10_FILES, "cifar-10-batches-py", b"labels", "cifar-10-batches-bin", 1),
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    shape=(3, 32, 32),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    sizes=HELD_OUT,
)
CIFAR100 = DatasetSpec(
    name="cifar100",
    title="60,000 colour images of 32 × 32, 100 classes",
    layouts=layouts("cifar100", 100, CIFAR100_FILES, "cifar-100-python", b"fine_labels", "cifar-100-binary", 2),
    classes=numbered_classes(100),
    shape=(3, 32, 32),
    mean=(0.5070, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2761),
    sizes=HELD_OUT,
)
