"""Images packed into few files: lossless WebP mosaics with `labels.npz`, or one `.npz` with all arrays.

A mosaic holds 2,500 images as 50 × 50 tiles, row-major (`train_00.webp` …, `test_00.webp` …); `labels.npz` has y_train,
y_test and classes. An npz has x_train, y_train, x_test, y_test, images [N, H, W] or [N, H, W, C].
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.data.records import Layout, Raw
from calibrant.errors import FileError
from calibrant.files import npz as archives
from calibrant.files.damage import readable
from calibrant.files.listing import visible
from calibrant.types import Split

TILES = 50


def mosaics(folder: str, train: int, test: int, edge: int, source: str) -> Layout:
    """The layout of a folder with `train` + `test` mosaics of `edge`-pixel RGB tiles."""
    names = [f"train_{i:02d}.webp" for i in range(train)] + [f"test_{i:02d}.webp" for i in range(test)]
    files = tuple(f"{folder}/{name}" for name in ["labels.npz", *names])
    return Layout(files, partial(_read_mosaics, folder=folder, edge=edge), source)


def npz(folder: str, name: str, source: str) -> Layout:
    return Layout((f"{folder}/{name}",), partial(_read_npz, name=f"{folder}/{name}"), source)


def _read_mosaics(root: Path, folder: str, edge: int) -> Raw:
    labels = arrays(root / folder / "labels.npz", ("y_train", "y_test"))
    parts = {}
    for split, key in ((Split.TRAIN, "train"), (Split.TEST, "test")):
        with ThreadPoolExecutor() as threads:  # decoding releases the lock: seconds become fractions of one
            x = torch.cat(list(threads.map(partial(tiles, edge=edge), visible(root / folder, f"{key}_*.webp"))))
        y = torch.from_numpy(labels[f"y_{key}"].astype(np.int64))
        if x.shape[0] != y.shape[0]:
            raise FileError(f"{root / folder}: {x.shape[0]} {key} images but {y.shape[0]} labels; fetch it again")
        parts[split] = (x, y)
    names = tuple(str(name) for name in labels["classes"]) if "classes" in labels else None
    return Raw(parts, names)


def tiles(path: Path, edge: int) -> Tensor:
    """One mosaic → uint8 [N, 3, edge, edge], row-major."""
    from PIL import Image

    with readable(path, "this image"), Image.open(path) as image:
        mosaic = np.asarray(image.convert("RGB"))
    rows, columns = mosaic.shape[0] // edge, mosaic.shape[1] // edge
    if columns != TILES or mosaic.shape[0] % edge:
        raise FileError(f"{path}: {mosaic.shape[1]}×{mosaic.shape[0]} pixels are not rows of {TILES} tiles of {edge}")
    x = mosaic.reshape(rows, edge, columns, edge, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, edge, edge)
    return torch.from_numpy(np.ascontiguousarray(x))


def _read_npz(root: Path, name: str) -> Raw:
    held = arrays(root / name, ("x_train", "y_train", "x_test", "y_test"))
    parts = {}
    for split, key in ((Split.TRAIN, "train"), (Split.TEST, "test")):
        parts[split] = (images(held[f"x_{key}"]), torch.from_numpy(held[f"y_{key}"].astype(np.int64)))
    return Raw(parts)


def images(x: NDArray[np.generic]) -> Tensor:
    """[N, H, W] or [N, H, W, C] → uint8 [N, C, H, W]."""
    channels_last = x[..., None] if x.ndim == 3 else x
    return torch.from_numpy(np.ascontiguousarray(channels_last.transpose(0, 3, 1, 2).astype(np.uint8)))


def arrays(path: Path, needed: tuple[str, ...], only: tuple[str, ...] = ()) -> dict[str, NDArray[np.generic]]:
    """The arrays of an npz (`only`: those that it has of these), none of which may be pickled objects."""
    archive = archives.read(path)
    held: dict[str, NDArray[np.generic]] = {k: archive.load(k) for k in archive.names if not only or k in only}
    for key in needed:
        if key not in held:
            raise FileError(f"{path}: has no array {key!r} (it has {', '.join(held)})")
    return held
