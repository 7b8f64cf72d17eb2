"""The published CIFAR-C and CIFAR-P files (Hendrycks 2019).

C: `CIFAR-10-C/NAME.npy` uint8 [50000, 32, 32, 3], five severities of the 10,000 test images in turn, and `labels.npy`.
P: `CIFAR-10-P/NAME.npy` uint8 [10000, frames, 32, 32, 3], sequences that change a little from frame to frame; labels
are the test set's. Files are mapped, not read: one severity is a fifth of one.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.data.new_tests import read_npy
from calibrant.data.packed import images
from calibrant.errors import FileError, InputError, unknown
from calibrant.files.listing import visible

SEVERITIES = 5
FOLDERS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}


def corruptions(name: str, root: Path, kind: str = "C") -> list[str]:
    """Names of the corruptions (kind "C") or perturbations ("P") that lie under the root for a data set."""
    folder = _folder(name, root, kind)
    return sorted(path.stem for path in visible(folder, "*.npy") if path.stem != "labels")


def corrupted(name: str, root: Path, corruption: str, severity: int) -> tuple[Tensor, Tensor]:
    """Images uint8 [N, 3, 32, 32] and labels of one corruption at one severity (1 … 5)."""
    if not 1 <= severity <= SEVERITIES:
        raise InputError(f"severity must lie in 1 … {SEVERITIES}, got {severity}")
    x, labels = _array(name, root, "C", corruption), read_npy(_folder(name, root, "C") / "labels.npy")
    if x.shape[0] != labels.shape[0] or x.shape[0] % SEVERITIES:
        raise FileError(
            f"{corruption}.npy: {x.shape[0]} images and {labels.shape[0]} labels are not five equal severities"
        )
    n = x.shape[0] // SEVERITIES
    chosen = slice((severity - 1) * n, severity * n)
    return images(np.asarray(x[chosen])), torch.from_numpy(labels[chosen].astype(np.int64))


def perturbed(name: str, root: Path, perturbation: str, items: slice = slice(None)) -> Tensor:
    """Sequences uint8 [N, frames, 3, 32, 32] of one perturbation, for some of the test items."""
    x = np.asarray(_array(name, root, "P", perturbation)[items])
    if x.ndim != 5:
        raise FileError(f"{perturbation}.npy: shape {x.shape} is not (items, frames, height, width, channels)")
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 1, 4, 2, 3)).astype(np.uint8))


def _folder(name: str, root: Path, kind: str) -> Path:
    if name not in FOLDERS:
        raise unknown("data set with published corruptions", name, FOLDERS)
    folder = root / f"{FOLDERS[name]}-{kind}"
    if not folder.is_dir():
        raise FileError(f"{folder}: not there; unpack {folder.name}.tar of zenodo.org into {root}")
    return folder


def _array(name: str, root: Path, kind: str, stem: str) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    path = _folder(name, root, kind) / f"{stem}.npy"
    if not path.is_file():
        raise unknown(f"file of {path.parent.name}", stem, corruptions(name, root, kind))
    return read_npy(path, mapped=True)
