"""The digits bundled with scikit-learn: 1,797 images of 8 × 8, the data set that needs no download."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.data.records import DatasetSpec, Layout, Part, Raw, numbered_classes
from calibrant.types import Split


def read_digits(root: Path) -> Raw:
    """Grey levels 0 … 16 become 0 … 255. There is no official test set: all items are split."""
    images, labels = _bundled()
    x = np.rint(images * (255 / 16)).astype(np.uint8)[:, None]
    return Raw({Split.TRAIN: Part.of(torch.from_numpy(x), torch.from_numpy(labels), Split.TRAIN)})


@cache
def _bundled() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """scikit-learn keeps them as text, which takes longer to read than an epoch on them does."""
    from sklearn.datasets import load_digits

    held = load_digits()
    return held.images, held.target


DIGITS = DatasetSpec(
    name="digits",
    title="1,797 handwritten digits of 8 × 8, bundled with scikit-learn",
    layouts=(Layout((), read_digits, "bundled with scikit-learn"),),
    classes=numbered_classes(10),
    shape=(1, 8, 8),
    mean=(0.3053,),
    std=(0.3761,),
    sizes={"validation": 180, "calibration": 360, "test": 450},
)
