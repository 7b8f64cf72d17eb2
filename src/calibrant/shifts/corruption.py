"""What all corruptions share: one `__call__` owns the checks, severity 0, the range, the dtype and the randomness.

A corruption writes only `distort`: float32 images in [0, 1] to float32 images, which are clipped afterwards. Bytes come
back as bytes: cut down, as the published files were (`numpy.uint8(255 · x)`), except where those came from an image
library, which rounds to the nearest.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.shifts.constants import CONSTANTS, SEVERITIES, SMALL
from calibrant.shifts.counter import Draws, draws

SMALLEST = 8
"""Below this side no corruption means anything. A kernel larger than the image is fine: borders repeat as needed."""

SLACK = 1e-4
"""Of a byte's step: keeps 254.99999 (a float32 255) from being cut down to 254."""

CACHED = 1 << 19
"""Values of a batch that a CPU works on at a time: two MiB as float32. Less costs calls, more costs its cache."""


@dataclass(frozen=True)
class Corruption(ABC):
    """(x, severity, rng) → x'. `size` forces the constants for 32 or 224; by default the image's side chooses."""

    size: int | None = None
    name: ClassVar[str]
    nearest: ClassVar[bool] = False
    bytewise: ClassVar[bool] = False
    """Works on whole values 0 … 255, as a file format does; what it returns is clipped and cut down to such."""

    def __post_init__(self) -> None:
        if self.size not in (None, 32, 224):
            raise InputError(f"{self.name}: constants are published for size 32 and 224, not {self.size}")

    def __call__(
        self, x: Tensor, severity: int, rng: torch.Generator | int, *, index: Tensor | int | None = None
    ) -> Tensor:
        """Images [N, C, H, W], uint8 or floating in [0, 1], C 1 or 3; severity 0 … 5 (0: unchanged).

        Randomness is by item: pass the items' numbers as `index` ([N], or the first one's) and a batch may be cut
        anywhere; without it they are 0 … N − 1. Of `rng` only the seed is read (`counter.draws`).
        """
        check_images(x)
        check_severity(severity)
        if severity == 0 or x.shape[0] == 0:
            return x.clone()
        numbers = draws(rng, self.name, severity, x.shape[0], x.device, index)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        with exact(x.device):
            for some in pieces(x):
                given = unit(x[some], 255.0 if self.bytewise else 1.0)
                made = self.distort(given, severity, Draws(numbers.key[some]))
                if not self.bytewise:
                    out[some] = as_given(made, x, self.nearest)
                elif x.dtype == torch.uint8:
                    out[some] = as_bytes(made)
                else:
                    out[some] = made.clamp_(0, 255).floor_().div_(255.0)
        return out

    @abstractmethod
    def distort(self, x: Tensor, severity: int, numbers: Draws) -> Tensor:
        """float32 in [0, 1] (0 … 255 if `bytewise`) to float32. `x` is the corruption's own: it may change in place."""

    def constant(self, x: Tensor, severity: int) -> Any:
        """The published strength for images of this size."""
        return CONSTANTS[self.name][32 if self.small(x) else 224][severity - 1]

    def small(self, x: Tensor) -> bool:
        """Whether the constants for 32 × 32 apply."""
        return self.size == 32 if self.size else min(x.shape[-2:]) <= SMALL


@contextmanager
def exact(device: torch.device) -> Iterator[None]:
    """No gradients, and products in full float32 whatever the caller set: bytes need more than autocast or TF32."""
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        if device.type == "cuda":
            torch.backends.cuda.matmul.fp32_precision = "ieee"
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            yield
    finally:
        if device.type == "cuda":
            torch.backends.cuda.matmul.fp32_precision = before


def pieces(x: Tensor) -> list[slice]:
    """The batch on a GPU; on a CPU as many images at a time as its cache holds, which changes nothing but the time."""
    n = x.shape[0]
    step = n if x.device.type != "cpu" else max(1, CACHED // x[0].numel())
    return [slice(start, start + step) for start in range(0, n, step)]


def check_severity(severity: int) -> None:
    whole = isinstance(severity, Integral) and not isinstance(severity, bool)
    if not whole or severity not in range(SEVERITIES + 1):
        raise InputError(f"severity must be a whole number in 0 … {SEVERITIES}, got {severity!r}")


def check_images(x: Tensor) -> None:
    """Refuses what cannot be images [N, 1 or 3, H, W] of bytes or of floats in [0, 1]."""
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
        remedy = "divide by 255 or hand in uint8" if low >= 0 and high > 2 else "undo mean and std first"
        raise InputError(f"float images must lie in [0, 1], got {low:.4g} … {high:.4g}; {remedy}")


def unit(x: Tensor, white: float = 1.0) -> Tensor:
    """A dense float32 copy in 0 … white; of 255, whole bytes."""
    copied = x.detach().to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    if x.dtype == torch.uint8:
        return copied if white == 255 else copied.mul_(white / 255.0)
    return copied.clamp_(0, 1).mul_(white).round_() if white != 1 else copied.clamp_(0, 1)


def as_given(y: Tensor, x: Tensor, nearest: bool) -> Tensor:
    """Clipped to [0, 1] and in the dtype of x."""
    y = y.clamp_(0, 1)
    if x.dtype != torch.uint8:
        return y.to(x.dtype)
    return as_bytes(y.mul_(255.0).add_(0.5 if nearest else SLACK))


def as_bytes(y: Tensor) -> Tensor:
    """Clipped and cut down to bytes; on a CPU by way of int16, as torch converts floats to bytes one by one there."""
    if y.device.type != "cpu":
        return y.clamp_(0, 255).to(torch.uint8)
    return y.to(torch.int16).clamp_(0, 255).to(torch.uint8)
