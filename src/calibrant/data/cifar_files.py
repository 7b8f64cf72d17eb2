"""CIFAR's official archives: the "python" one through an unpickler that admits numpy arrays only, and the "binary" one.

python:  cifar-10-batches-py/{data_batch_1 … 5, test_batch}, cifar-100-python/{train, test}: a dict with b"data" (uint8
         [N, 3072], red plane, green, blue) and b"labels" or b"fine_labels".
binary:  cifar-10-batches-bin/*.bin (label, 3072 bytes), cifar-100-binary/{train,test}.bin (coarse, fine, 3072 bytes).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.data.records import Layout, Raw
from calibrant.errors import FileError
from calibrant.files.damage import readable
from calibrant.files.listing import existing
from calibrant.types import Split

PIXELS = 3 * 32 * 32
ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}
CIFAR10_FILES = {Split.TRAIN: tuple(f"data_batch_{i}" for i in range(1, 6)), Split.TEST: ("test_batch",)}
CIFAR100_FILES = {Split.TRAIN: ("train",), Split.TEST: ("test",)}


class ArraysOnly(pickle.Unpickler):
    """Plain containers and numpy arrays; anything else a pickle could call is refused before it is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise FileError(f"a CIFAR file holds numpy arrays only, and this one asks for {module}.{name}: not read")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def python_archive(folder: str, files: Mapping[Split, tuple[str, ...]], key: bytes, source: str) -> Layout:
    names = tuple(f"{folder}/{name}" for group in files.values() for name in group)
    return Layout(names, partial(_read_python, folder=folder, files=files, key=key), source)


def binary_archive(folder: str, files: Mapping[Split, tuple[str, ...]], labels: int, source: str) -> Layout:
    """`labels`: label bytes in front of each image; the last of them is the fine one."""
    names = tuple(f"{folder}/{name}.bin" for group in files.values() for name in group)
    return Layout(names, partial(_read_binary, folder=folder, files=files, labels=labels), source)


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


def _read_python(root: Path, folder: str, files: Mapping[Split, tuple[str, ...]], key: bytes) -> Raw:
    parts = {}
    for split, names in files.items():
        pairs = []
        for name in names:
            held = unpickle(root / folder / name)
            if b"data" not in held or key not in held:
                raise FileError(f"{root / folder / name}: has no {key.decode()!r} and 'data'")
            pairs.append(_images(np.asarray(held[b"data"]), np.asarray(held[key]), root / folder / name))
        parts[split] = (torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))
    return Raw(parts)


def _read_binary(root: Path, folder: str, files: Mapping[Split, tuple[str, ...]], labels: int) -> Raw:
    parts = {}
    for split, names in files.items():
        pairs = []
        for name in names:
            path = root / folder / f"{name}.bin"
            raw = np.frombuffer(existing(path).read_bytes(), np.uint8)
            if raw.size % (PIXELS + labels):
                raise FileError(f"{path}: {raw.size} bytes are not whole records of {PIXELS + labels}; fetch it again")
            rows = raw.reshape(-1, PIXELS + labels)
            pairs.append(_images(rows[:, labels:], rows[:, labels - 1], path))
        parts[split] = (torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))
    return Raw(parts)


def _images(data: Any, labels: Any, path: Path) -> tuple[Tensor, Tensor]:
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != PIXELS or data.shape[0] != labels.shape[0]:
        raise FileError(f"{path}: images {data.dtype} {data.shape} and labels {labels.shape} are not CIFAR's")
    x = np.ascontiguousarray(data).reshape(-1, 3, 32, 32)
    return torch.from_numpy(x.copy()), torch.from_numpy(labels.astype(np.int64))
