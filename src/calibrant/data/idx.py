"""MNIST's own files: two zero bytes, a type (8: uint8), the number of axes, each length big-endian, then the data."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.data.records import Layout, Raw
from calibrant.errors import FileError
from calibrant.files.damage import readable
from calibrant.types import Split

NAMES = {
    Split.TRAIN: ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    Split.TEST: ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def idx_files(folder: str, suffix: str, source: str) -> Layout:
    """The four files in `folder`, plain (suffix "") or gzipped (".gz")."""
    files = tuple(f"{folder}/{name}{suffix}" for pair in NAMES.values() for name in pair)
    return Layout(files, partial(_read, folder=folder, suffix=suffix), source)


def _read(root: Path, folder: str, suffix: str) -> Raw:
    parts = {}
    for split, names in NAMES.items():
        x, y = (read_idx(root / folder / f"{name}{suffix}") for name in names)
        parts[split] = (x.unsqueeze(1), y.long())
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
