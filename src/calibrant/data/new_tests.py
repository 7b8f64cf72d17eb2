"""New test sets for CIFAR-10's classes, made as the old one was: CIFAR-10.1 (Recht 2018) and CIFAR-10.2 (Lu 2020).

10.1: `cifar-10.1/cifar10.1_v6_data.npy` uint8 [2000, 32, 32, 3] and `cifar10.1_v6_labels.npy`.
10.2: `cifar-10.2/cifar102_test.npz` with `images` and `labels`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.data.packed import arrays, images
from calibrant.data.records import Layout, Raw
from calibrant.errors import FileError
from calibrant.files.npz import unpickled
from calibrant.types import Split

V6 = ("cifar-10.1/cifar10.1_v6_data.npy", "cifar-10.1/cifar10.1_v6_labels.npy")
TEST_2 = "cifar-10.2/cifar102_test.npz"


def read_npy(path: Path, *, mapped: bool = False) -> NDArray[np.generic]:
    """One array, never pickled objects; `mapped` leaves it on disk until parts are read."""
    with unpickled(path, "this array"):
        found: NDArray[np.generic] = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    return found


def as_test(x: NDArray[np.generic], y: NDArray[np.generic], path: Path) -> Raw:
    if x.ndim != 4 or x.shape[0] != y.shape[0]:
        raise FileError(f"{path}: images {x.shape} and labels {y.shape} do not belong together")
    return Raw({Split.TEST: (images(x), torch.from_numpy(y.astype(np.int64)))})


def read_10_1(root: Path) -> Raw:
    return as_test(read_npy(root / V6[0]), read_npy(root / V6[1]), root / V6[0])


def read_10_2(root: Path) -> Raw:
    held = arrays(root / TEST_2, ("images", "labels"), only=("images", "labels"))  # keywords beside them are objects
    return as_test(held["images"], held["labels"], root / TEST_2)


CIFAR10_1 = Layout(V6, read_10_1, "github.com/modestyachts/CIFAR-10.1, folder datasets")
CIFAR10_2 = Layout((TEST_2,), read_10_2, "github.com/modestyachts/cifar-10.2")
