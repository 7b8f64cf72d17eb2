"""The digits bundled with scikit-learn: 1,797 images of 8 × 8, the data set that needs no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from calibrant.data.records import DatasetSpec, Layout, Raw, numbered_classes
from calibrant.types import Split


def read_digits(root: Path) -> Raw:
    """Grey levels 0 … 16 become 0 … 255. There is no official test set: all items are split."""
    from sklearn.datasets import load_digits

    held = load_digits()
    x = np.rint(held.images * (255 / 16)).astype(np.uint8)[:, None]
    return Raw({Split.TRAIN: (torch.from_numpy(x), torch.from_numpy(held.target.astype(np.int64)))})


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
