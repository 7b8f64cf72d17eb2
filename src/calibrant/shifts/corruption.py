"""Corruptions: one `__call__` does the checks, severity 0, the range, the dtype and the randomness for all of them.

A corruption has its published `strengths` and one method, `distort`: float32 images in [0, 1] → float32 images, which
are clipped afterwards. Bytes become bytes again. They are rounded down, as in the published files
(`numpy.uint8(255 · x)`), or to the nearest if an image library made those files.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.shifts.random_numbers import Draws, draws

SEVERITIES = 5

Strengths = Mapping[int, tuple[Any, ...]]
"""Image size (32 or 224) → the published strength of each severity, 1 … 5 (Hendrycks & Dietterich 2019).

32 is what made CIFAR-10-C and CIFAR-100-C (`make_cifar_c.py`), 224 what made ImageNet-C (`make_imagenet_c.py`), both in
the authors' repository hendrycks/robustness. Lengths are in pixels and are not scaled to other sizes, except those of
`elastic_transform`, which are published as shares of the side.
"""

SMALL = 96
"""Images whose shorter side is at most this take the strengths for 32 × 32, larger ones those for 224 × 224."""

SMALLEST = 8
"""The smallest side for which corruptions make sense. A kernel may be larger than the image: borders are repeated."""

SLACK = 1e-4
"""Added before rounding down to bytes, so that 254.99999 (a float32 255) does not become 254."""

CACHED = 1 << 19
"""Values that a CPU processes at a time: two MiB of float32, which fit into its cache."""


@dataclass(frozen=True)
class Corruption(ABC):
    """(x, severity, rng) → x'. `size` forces the strengths for 32 or 224; by default the image's side decides."""

    size: int | None = None
    name: ClassVar[str]
    strengths: ClassVar[Strengths]
    nearest: ClassVar[bool] = False
    bytewise: ClassVar[bool] = False
    """Works on whole values 0 … 255, as a file format does; its result is clipped and rounded down to them."""

    def __post_init__(self) -> None:
        if self.size not in (None, 32, 224):
            raise InputError(f"{self.name}: constants are published for size 32 and 224, not {self.size}")

    def __call__(
        self, x: Tensor, severity: int, rng: torch.Generator | int, *, index: Tensor | int | None = None
    ) -> Tensor:
        """Images [N, C, H, W], uint8 or floating in [0, 1], C 1 or 3; severity 0 … 5 (0: unchanged).

        Randomness is per item: pass the numbers of the items as `index` ([N], or that of the first), and the result
        does not depend on how the data is batched. By default they are 0 … N − 1. Only the seed of `rng` is used
        (`random_numbers.draws`).
        """
        check_images(x)
        check_severity(severity)
        if severity == 0 or x.shape[0] == 0:
            return x.clone()
        numbers = draws(rng, self.name, severity, x.shape[0], x.device, index)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        with full_precision(x.device):
            for some in cached_slices(x):
                given = to_floats(x[some], 255.0 if self.bytewise else 1.0)
                made = self.distort(given, severity, Draws(numbers.key[some]))
                if not self.bytewise:
                    out[some] = as_dtype_of(made, x, self.nearest)
                elif x.dtype == torch.uint8:
                    out[some] = as_bytes(made)
                else:
                    out[some] = made.clamp_(0, 255).floor_().div_(255.0)
        return out

    @abstractmethod
    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        """float32 in [0, 1] (0 … 255 if `bytewise`) → float32. `x` is a copy and may be changed in place."""

    def strength(self, x: Tensor, severity: int) -> Any:
        """The published strength for images of this size."""
        return self.strengths[32 if self.small(x) else 224][severity - 1]

    def small(self, x: Tensor) -> bool:
        """Whether the strengths for 32 × 32 apply."""
        return self.size == 32 if self.size else min(x.shape[-2:]) <= SMALL


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Inside, there are no gradients, and products have full float32 precision: autocast and TF32 are too coarse."""
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        if device.type == "cuda":
            torch.backends.cuda.matmul.fp32_precision = "ieee"
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        if device.type == "cuda":
            torch.backends.cuda.matmul.fp32_precision = before


def cached_slices(x: Tensor) -> list[slice]:
    """Slices of a batch: the whole batch on a GPU; on a CPU as many images as fit into its cache, which is faster."""
    n = x.shape[0]
    step = n if x.device.type != "cpu" else max(1, CACHED // x[0].numel())
    return [slice(start, start + step) for start in range(0, n, step)]


def check_severity(severity: int) -> None:
    whole = isinstance(severity, Integral) and not isinstance(severity, bool)
    if not whole or severity not in range(SEVERITIES + 1):
        raise InputError(f"severity must be a whole number in 0 … {SEVERITIES}, got {severity!r}")


def check_images(x: Tensor) -> None:
    """Refuse anything but images [N, 1 or 3, H, W] of bytes or of floats in [0, 1]."""
    if not isinstance(x, Tensor):
        raise InputError(f"images must be a torch tensor, got {type(x).__name__}; torch.as_tensor(x) makes one")
    shape = tuple(x.shape)
    if x.ndim != 4 or shape[1] not in (1, 3):
        hint = "permute channels to the second axis" if x.ndim == 4 and shape[-1] in (1, 3) else "one image is x[None]"
        raise InputError(f"images must be [N, C, H, W] with 1 or 3 channels, got {shape}; {hint}")
    if min(shape[2:]) < SMALLEST:
        raise InputError(f"images of {shape[2]} × {shape[3]} are too small; corruptions need {SMALLEST} × {SMALLEST}")
    if x.dtype == torch.uint8 or shape[0] == 0:
        return
    if not x.is_floating_point():
        raise InputError(f"images must be uint8 or floating, got {x.dtype}; convert with x.to(torch.uint8)")
    low, high = (float(v) for v in x.detach().aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError("float images must lie in [0, 1], got NaN or infinity; replace those values")
    if low < -1e-6 or high > 1 + 1e-6:
        remedy = "divide by 255 or pass uint8" if low >= 0 and high > 2 else "undo mean and std first"
        raise InputError(f"float images must lie in [0, 1], got {low:.4g} … {high:.4g}; {remedy}")


def to_floats(x: Tensor, white: float = 1.0) -> Tensor:
    """A dense float32 copy in 0 … white; for 255, whole numbers."""
    copied = x.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if x.dtype == torch.uint8:
        return copied if white == 255 else copied.mul_(white / 255.0)
    return copied.clamp_(0, 1).mul_(white).round_() if white != 1 else copied.clamp_(0, 1)


def as_dtype_of(y: Tensor, x: Tensor, nearest: bool) -> Tensor:
    """Clipped to [0, 1] and in the dtype of x."""
    y = y.clamp_(0, 1)
    if x.dtype != torch.uint8:
        return y.to(x.dtype)
    return as_bytes(y.mul_(255.0).add_(0.5 if nearest else SLACK))


def as_bytes(y: Tensor) -> Tensor:
    """Clipped and rounded down to bytes."""
    return y.clamp_(0, 255).to(torch.uint8)
