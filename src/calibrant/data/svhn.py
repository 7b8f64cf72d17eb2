"""SVHN, format 2 (Netzer 2011): `{train,test}_32x32.mat` with X uint8 [32, 32, 3, N] and y [N, 1], where 10 means 0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.data.records import Layout, Raw
from calibrant.errors import FileError
from calibrant.types import Split

FILES = {Split.TRAIN: "svhn/train_32x32.mat", Split.TEST: "svhn/test_32x32.mat"}


def read_svhn(root: Path) -> Raw:
    return Raw({split: read_mat(root / name) for split, name in FILES.items()})


def read_mat(path: Path) -> tuple[Tensor, Tensor]:
    from scipy.io import loadmat

    try:
        held = loadmat(path, variable_names=("X", "y"))
    except Exception as error:  # scipy raises half a dozen kinds on a broken file
        raise FileError(f"{path}: not a readable MATLAB file ({error}); fetch it again") from error
    if "X" not in held or "y" not in held:
        raise FileError(f"{path}: has no X and y; the 32×32 files of SVHN do (not the full-number archives)")
    x, y = held["X"], held["y"].reshape(-1).astype(np.int64)
    if x.ndim != 4 or x.shape[:3] != (32, 32, 3) or x.shape[3] != y.size:
        raise FileError(f"{path}: X is {x.shape} for {y.size} labels, expected (32, 32, 3, N)")
    images = np.ascontiguousarray(x.transpose(3, 2, 0, 1).astype(np.uint8))
    return torch.from_numpy(images), torch.from_numpy(np.where(y == 10, 0, y))


SVHN = Layout(tuple(FILES.values()), read_svhn, "the cropped digits (format 2) of ufldl.stanford.edu/housenumbers")
