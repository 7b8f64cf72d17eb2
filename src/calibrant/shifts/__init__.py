"""Shifts: images that drift from the training data (Hendrycks & Dietterich 2019; SS §2.2, §3, App. E).

`SHIFTS` holds the corruptions, (x, severity, rng, index=) → x'. Randomness is by item: item 7 of seed 0 looks the same
alone, in any batch and on any device, so results never depend on the batch size (`counter`).
"""

from torch import Tensor

from calibrant.errors import unknown
from calibrant.shifts.constants import SEVERITIES, SUBSETS
from calibrant.shifts.corruption import Corruption
from calibrant.shifts.noise import GaussianNoise, ImpulseNoise, ShotNoise, SpeckleNoise

SHIFTS: dict[str, type[Corruption]] = {
    "gaussian_noise": GaussianNoise,
    "shot_noise": ShotNoise,
    "impulse_noise": ImpulseNoise,
    "speckle_noise": SpeckleNoise,
}
"""Name → class, in the published order: the benchmark's fifteen, then the four extra ones."""


def corrupt(x: Tensor, name: str, severity: int, seed: int = 0, *, index: Tensor | int | None = None) -> Tensor:
    """Images [N, C, H, W] (uint8, or floating in [0, 1]) under one corruption, in the same dtype and range.

    `index` numbers the items, so that a stream of batches gets the noise the whole set would get: the first item's
    number, or one number an item. By default 0 … N − 1.
    """
    if name not in SHIFTS:
        raise unknown("corruption", name, SHIFTS)
    return SHIFTS[name]()(x, severity, seed, index=index)


__all__ = ["SEVERITIES", "SHIFTS", "SUBSETS", "Corruption", "corrupt"]
