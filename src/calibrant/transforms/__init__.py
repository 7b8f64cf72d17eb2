"""Batch transforms: (model, x, q, index, rng) → x, q. Those after which items have no single label set `mixes_labels`.

Crop and flip happen where the batch is gathered (`calibrant.data.batches`).
"""

from collections.abc import Callable

from calibrant.errors import suggest_names
from calibrant.protocols import BatchTransform
from calibrant.transforms.ccat import CCAT
from calibrant.transforms.cutmix import CutMix
from calibrant.transforms.mixup import Mixup

TRANSFORMS: dict[str, Callable[..., BatchTransform]] = {"mixup": Mixup, "cutmix": CutMix, "ccat": CCAT}

__all__ = ["CCAT", "TRANSFORMS", "CutMix", "Mixup"]

suggest_names(__name__)
