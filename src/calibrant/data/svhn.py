"""SVHN, format 2 (Netzer 2011): `{train,test}_32x32.mat` with X uint8 [32, 32, 3, N] and y [N, 1], where 10 means 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.data.image_arrays import with_labels
from calibrant.data.records import HELD_OUT, DatasetSpec, numbered_classes, one_reader
from calibrant.errors import FileError
from calibrant.files.paths import readable
from calibrant.types import Split

CLASSES = 10


def read_mat(path: Path) -> tuple[Tensor, Tensor]:
    from scipy.io import loadmat

    with readable(path, "this MATLAB file"):
        held = loadmat(path, variable_names=("X", "y"))
    if "X" not in held or "y" not in held:
        raise FileError(f"{path}: has no X and y; the 32×32 files of SVHN do (not the full-number archives)")
    x, y = held["X"], held["y"].reshape(-1)
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.dtype != np.uint8:
        raise FileError(f"{path}: X is {x.dtype} {x.shape}, expected bytes (32, 32, 3, N)")
    images = torch.from_numpy(np.ascontiguousarray(x.transpose(3, 2, 0, 1)))
    return with_labels(images, np.where(y == 10, 0, y), CLASSES, path)


SVHN = DatasetSpec(
    name="svhn",
    title="99,289 street-view digits of 32 × 32 (RC §3.1)",
    layouts=(
        one_reader(
            "svhn",
            {Split.TRAIN: ("train_32x32.mat",), Split.TEST: ("test_32x32.mat",)},
            read_mat,
            "the cropped digits (format 2) of ufldl.stanford.edu/housenumbers",
        ),
    ),
    classes=numbered_classes(CLASSES),
    shape=(3, 32, 32),
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    sizes=HELD_OUT,
)
