"""The published strengths of the 19 corruptions (Hendrycks & Dietterich 2019), severity 1 … 5, for two image sizes.

32: what made CIFAR-10-C and CIFAR-100-C (`make_cifar_c.py`); 224: what made ImageNet-C (`make_imagenet_c.py`), both of
the authors' repository hendrycks/robustness. Lengths are in pixels and are not scaled to other sizes, except those of
`elastic_transform`, which are published as shares of the side and stay shares.
"""

from __future__ import annotations

from typing import Any

SEVERITIES = 5
SMALL = 96
"""Images whose shorter side is at most this take the constants for 32 × 32, larger ones those for 224 × 224."""

CONSTANTS: dict[str, dict[int, tuple[Any, ...]]] = {
    # standard deviation of the noise
    "gaussian_noise": {32: (0.04, 0.06, 0.08, 0.09, 0.10), 224: (0.08, 0.12, 0.18, 0.26, 0.38)},
    # photons at white
    "shot_noise": {32: (500, 250, 100, 75, 50), 224: (60, 25, 12, 5, 3)},
    # share of values that become 0 or 1
    "impulse_noise": {32: (0.01, 0.02, 0.03, 0.05, 0.07), 224: (0.03, 0.06, 0.09, 0.17, 0.27)},
    # standard deviation of the noise at white
    "speckle_noise": {32: (0.06, 0.1, 0.12, 0.16, 0.2), 224: (0.15, 0.2, 0.35, 0.45, 0.6)},
    # (radius of the disk, standard deviation of its anti-aliasing)
    "defocus_blur": {
        32: ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        224: ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    },
    # (standard deviation of the blur, reach of a displacement, rounds)
    "glass_blur": {
        32: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        224: ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    },
    # (radius, standard deviation)
    "motion_blur": {
        32: ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        224: ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    },
    # (number of zoom factors, their distance); the first is 1. Published as numpy.arange(1, end, step), which by
    # rounding includes the ends 1.06 and 1.11, but not 1.16
    "zoom_blur": {
        32: ((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
        224: ((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
    },
    # standard deviation
    "gaussian_blur": {32: (0.4, 0.6, 0.7, 0.8, 1), 224: (1, 2, 3, 4, 6)},
    # (mean and deviation of the flakes, their zoom, threshold, radius and deviation of the motion, share of the image)
    "snow": {
        32: (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        224: (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    },
    # (share of the image, share of the frost)
    "frost": {
        32: ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        224: ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    },
    # (strength, decay of the fractal's detail)
    "fog": {
        32: ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        224: ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    },
    # added to the value of HSV
    "brightness": {32: (0.05, 0.1, 0.15, 0.2, 0.3), 224: (0.1, 0.2, 0.3, 0.4, 0.5)},
    # (mean and deviation of the liquid, its blur, threshold, opacity of water or blur of mud, 0 water or 1 mud)
    "spatter": {
        32: (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        224: (
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
    },
    # what is left of the contrast
    "contrast": {32: (0.75, 0.5, 0.4, 0.3, 0.15), 224: (0.4, 0.3, 0.2, 0.1, 0.05)},
    # shares of the side: (displacement, its smoothness, reach of the affine map); 224 is published with 244, see there
    "elastic_transform": {
        32: ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        224: ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)),
    },
    # side of the small image as a share
    "pixelate": {32: (0.95, 0.9, 0.85, 0.75, 0.65), 224: (0.6, 0.5, 0.4, 0.3, 0.25)},
    # quality
    "jpeg_compression": {32: (80, 65, 58, 50, 40), 224: (25, 18, 15, 10, 7)},
    # saturation of HSV: (factor, addend)
    "saturate": {
        32: ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        224: ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    },
}

MAIN = (
    "gaussian_noise", "shot_noise", "impulse_noise",
    "defocus_blur", "glass_blur", "motion_blur", "zoom_blur",
    "snow", "frost", "fog", "brightness",
    "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
"""The benchmark's own fifteen: noise, blur, weather, digital."""

EXTRA = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Published beside them, for validation."""

SUBSETS: dict[str, tuple[str, ...]] = {
    "15": MAIN,
    "17": tuple(name for name in (*MAIN, *EXTRA) if name not in ("motion_blur", "snow")),
    "19": (*MAIN, *EXTRA),
}
"""15: SS on CIFAR-100-C, AR on ImageNet-C. 17: AR on CIFAR-100-C, which names none; these are the 17 that
google/uncertainty-baselines, of AR's authors' group, lists for CIFAR-100-C. 19: AR on CIFAR-10-C."""
