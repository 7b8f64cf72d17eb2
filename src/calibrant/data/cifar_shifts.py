"""Published shifts of CIFAR: new test sets (CIFAR-10.1, CIFAR-10.2), corruptions (CIFAR-C), sequences (CIFAR-P).

10.1 (Recht 2018): `cifar-10.1/cifar10.1_v6_data.npy` uint8 [2000, 32, 32, 3] and `cifar10.1_v6_labels.npy`.
10.2 (Lu 2020): `cifar-10.2/cifar102_test.npz` with `images` and `labels`.
C (Hendrycks 2019): `CIFAR-10-C/NAME.npy` uint8 [50000, 32, 32, 3], five severities of the 10,000 test images one after
the other, and `labels.npy`.
P: `CIFAR-10-P/NAME.npy` uint8 [10000, frames, 32, 32, 3], sequences that change a little from frame to frame; their
labels are those of the test set.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.data.cifar import CIFAR10, CIFAR100
from calibrant.data.corruption_folder import CorruptionFolder
from calibrant.data.image_arrays import read_set
from calibrant.data.records import Layout, Part, Raw
from calibrant.errors import FileError, unknown
from calibrant.files.npz import read_npy
from calibrant.files.paths import visible
from calibrant.types import Split

V6 = ("cifar-10.1/cifar10.1_v6_data.npy", "cifar-10.1/cifar10.1_v6_labels.npy")
TEST_2 = "cifar-10.2/cifar102_test.npz"


def cifar_c(name: str, root: Path) -> CorruptionFolder:
    """The corruptions of `cifar10` or `cifar100`: `.types`, and `.cell(TYPE, SEVERITY)` → (images, labels)."""
    classes = CIFAR100.classes if name == "cifar100" else CIFAR10.classes
    return CorruptionFolder(_published(name, root, "C"), len(classes))


def cifar_p(name: str, root: Path, perturbation: str, items: slice = slice(None)) -> Tensor:
    """Sequences uint8 [N, frames, 3, 32, 32] of one perturbation, for some of the test items."""
    path = _published(name, root, "P") / f"{perturbation}.npy"
    if not path.is_file():
        raise unknown(f"file of {path.parent.name}", perturbation, [p.stem for p in visible(path.parent, "*.npy")])
    x = np.asarray(read_npy(path, mapped=True)[items])
    if x.ndim != 5:
        raise FileError(f"{path}: shape {x.shape} is not (items, frames, height, width, channels)")
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 1, 4, 2, 3)).astype(np.uint8))


def _published(name: str, root: Path, kind: str) -> Path:
    folders = {"cifar10": f"CIFAR-10-{kind}", "cifar100": f"CIFAR-100-{kind}"}
    if name not in folders:
        raise unknown("data set with published corruptions", name, folders)
    folder = root / folders[name]
    if not folder.is_dir():
        raise FileError(f"{folder}: not found; unpack {folder.name}.tar of zenodo.org into {root}")
    return folder


def read_test(root: Path, file: str) -> Raw:
    return Raw({Split.TEST: Part.of(*read_set(root / file, len(CIFAR10.classes)), Split.TEST)})


CIFAR10_1 = replace(
    CIFAR10,
    name="cifar10_1",
    title="CIFAR-10.1, a new test set of 2,000 images for CIFAR-10's classes",
    layouts=(Layout(V6, partial(read_test, file=V6[0]), "github.com/modestyachts/CIFAR-10.1, folder datasets"),),
    sizes={},
)
CIFAR10_2 = replace(
    CIFAR10,
    name="cifar10_2",
    title="CIFAR-10.2, another new test set of 2,000 images",
    layouts=(Layout((TEST_2,), partial(read_test, file=TEST_2), "github.com/modestyachts/cifar-10.2"),),
    sizes={},
)
