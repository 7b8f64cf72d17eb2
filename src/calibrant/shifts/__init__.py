"""Shifts: images that differ from the training data (Hendrycks & Dietterich 2019; SS §2.2, §3, App. E).

`SHIFTS` holds the corruptions, (x, severity, rng, index=) → x', and `PERTURBATIONS` the sequences, (x, frames, rng,
index=) → [T, N, C, H, W]. `frequency` makes noise of one band of frequencies. Randomness is per item: item 7 with
seed 0 is the same alone, in any batch and on any device, so results never depend on the batch size (`random_numbers`).
"""

from torch import Tensor

from calibrant.errors import suggest_names, unknown
from calibrant.shifts.blur import DefocusBlur, GaussianBlur, GlassBlur, MotionBlur, ZoomBlur
from calibrant.shifts.colour import Brightness, Contrast, Saturate
from calibrant.shifts.corruption import SEVERITIES, Corruption
from calibrant.shifts.elastic import ElasticTransform
from calibrant.shifts.frequency import FrequencyNoise, accuracy_against_frequency
from calibrant.shifts.jpeg import JpegCompression
from calibrant.shifts.noise import GaussianNoise, ImpulseNoise, ShotNoise, SpeckleNoise
from calibrant.shifts.perturbation import Perturbation
from calibrant.shifts.pixelate import Pixelate
from calibrant.shifts.sequences import (
    BrightnessSequence,
    GaussianBlurSequence,
    GaussianNoiseSequence,
    MotionBlurSequence,
    ShotNoiseSequence,
    SnowSequence,
    SpatterSequence,
    SpeckleNoiseSequence,
)
from calibrant.shifts.spatter import Spatter
from calibrant.shifts.warp import Rotate, Scale, Shear, Tilt, Translate, ZoomBlurSequence
from calibrant.shifts.weather import Fog, Frost, Snow

SHIFTS: dict[str, type[Corruption]] = {
    "gaussian_noise": GaussianNoise,
    "shot_noise": ShotNoise,
    "impulse_noise": ImpulseNoise,
    "defocus_blur": DefocusBlur,
    "glass_blur": GlassBlur,
    "motion_blur": MotionBlur,
    "zoom_blur": ZoomBlur,
    "snow": Snow,
    "frost": Frost,
    "fog": Fog,
    "brightness": Brightness,
    "contrast": Contrast,
    "elastic_transform": ElasticTransform,
    "pixelate": Pixelate,
    "jpeg_compression": JpegCompression,
    "speckle_noise": SpeckleNoise,
    "gaussian_blur": GaussianBlur,
    "spatter": Spatter,
    "saturate": Saturate,
}
"""Name → class, in the published order: the benchmark's fifteen, then the four extra ones."""

MAIN = (
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
"""The fifteen corruptions of the benchmark: noise, blur, weather, digital."""

EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Four more corruptions, published for validation."""

SUBSETS: dict[str, tuple[str, ...]] = {
    "15": MAIN,
    "17": tuple(name for name in (*MAIN, *EXTRA) if name not in ("motion_blur", "snow")),
    "19": (*MAIN, *EXTRA),
}
"""15: SS on CIFAR-100-C, AR on ImageNet-C. 17: AR on CIFAR-100-C; the paper does not name them, and these are the 17
that google/uncertainty-baselines (AR's authors' group) lists for CIFAR-100-C. 19: AR on CIFAR-10-C."""

PERTURBATIONS: dict[str, type[Perturbation]] = {
    "gaussian_noise": GaussianNoiseSequence,
    "shot_noise": ShotNoiseSequence,
    "motion_blur": MotionBlurSequence,
    "zoom_blur": ZoomBlurSequence,
    "snow": SnowSequence,
    "brightness": BrightnessSequence,
    "translate": Translate,
    "rotate": Rotate,
    "tilt": Tilt,
    "scale": Scale,
    "speckle_noise": SpeckleNoiseSequence,
    "gaussian_blur": GaussianBlurSequence,
    "spatter": SpatterSequence,
    "shear": Shear,
}
"""Name → class: CIFAR-10-P's ten, then the four extra ones."""


def corrupt(x: Tensor, name: str, severity: int, seed: int = 0, *, index: Tensor | int | None = None) -> Tensor:
    """Apply one corruption to images [N, C, H, W], uint8 or floating in [0, 1]; dtype and range stay the same.

    `index` is the number of the first item, or one number per item, by default 0 … N − 1. With it, a stream of batches
    gets the same noise as the whole set.
    """
    if name not in SHIFTS:
        raise unknown("corruption", name, SHIFTS)
    return SHIFTS[name]()(x, severity, seed, index=index)


def perturb(
    x: Tensor, name: str, frames: int | None = None, seed: int = 0, *, index: Tensor | int | None = None
) -> Tensor:
    """Make sequences [T, N, C, H, W] of images [N, C, H, W] under one perturbation; T has a published default."""
    if name not in PERTURBATIONS:
        raise unknown("perturbation", name, PERTURBATIONS)
    return PERTURBATIONS[name]()(x, frames, seed, index=index)


__all__ = [
    "PERTURBATIONS",
    "SEVERITIES",
    "SHIFTS",
    "SUBSETS",
    "Corruption",
    "FrequencyNoise",
    "Perturbation",
    "accuracy_against_frequency",
    "corrupt",
    "perturb",
]

suggest_names(__name__)
