"""The bounds of an attack and the unit of its distances: pixels in [low, high], however the input is normalised.

    pixel = input · std + mean,   low ≤ pixel ≤ high

A network takes normalised inputs, but budgets and distances are in pixels (AR A.4: images in [0, 1]). `mean` and `std`
are per channel, as in `calibrant.data`; without them, inputs are pixels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.settings import number

ROUNDING = 1e-4
"""How far a float32 pixel may exceed a bound through rounding, as a share of the range."""


@dataclass(frozen=True)
class Bounds:
    """The box of pixels, and the affine map from inputs to pixels. A single mean or std holds for all channels."""

    low: float = 0.0
    high: float = 1.0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, number(f"bounds: {name}", getattr(self, name), infinite=True))
        for name in ("mean", "std"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else _channels(name, given))
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            raise InputError(
                f"bounds [{self.low:g}, {self.high:g}] must be finite, because attacks measure their steps by the "
                "box; take one that holds the data with some room, for example Bounds(-3, 3)"
            )
        if not self.low < self.high:
            raise InputError(f"bounds need low < high, got [{self.low}, {self.high}]")
        if self.std is not None and min(self.std) <= 0:
            raise InputError(f"std={self.std} must be positive")

    @classmethod
    def of(cls, given: Bounds | Sequence[float]) -> Bounds:
        """Return `given` as bounds; a pair (low, high) will do."""
        if isinstance(given, Bounds):
            return given
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise InputError(f"bounds must be Bounds(low, high, mean=, std=) or a pair (low, high), got {given!r}")
        return cls(*given)

    @property
    def range(self) -> float:
        return self.high - self.low

    def pixels(self, x: Tensor) -> Tensor:
        """Convert the network's input to pixels. Pixels outside the box are an error unless rounding explains them."""
        if not x.is_floating_point():
            raise InputError(f"attacks move real-valued inputs, not {x.dtype}; pass what the network takes")
        check_batch(x)
        pixel = self.denormalised(x)
        lowest, highest = torch.aminmax(pixel)
        slack = max(ROUNDING * self.range, self._last_digit(x.dtype))
        if not (bool(lowest >= self.low - slack) and bool(highest <= self.high + slack)):
            raise InputError(
                f"pixels reach from {lowest.item():.4g} to {highest.item():.4g}, outside the bounds "
                f"[{self.low:g}, {self.high:g}]; pass Bounds(low, high, mean=, std=) with the constants that the "
                "inputs were normalised by"
            )
        return self.clip(pixel)

    def denormalised(self, x: Tensor) -> Tensor:
        """Convert the network's input to pixels in float32 or wider, without clipping."""
        at_least_single = torch.promote_types(x.dtype, torch.float32)  # half precision cannot hold a small perturbation
        mean, std = self._affine(x, at_least_single)
        return x.detach().to(at_least_single) * std + mean

    def inputs(self, pixel: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert pixels to the network's input."""
        if self.mean is None and self.std is None:
            return pixel.to(dtype)
        mean, std = self._affine(pixel, pixel.dtype)
        return ((pixel - mean) / std).to(dtype)

    def clip(self, pixel: Tensor) -> Tensor:
        return pixel.clamp(self.low, self.high)

    def _last_digit(self, dtype: torch.dtype) -> float:
        """Return the largest error of a pixel at a bound whose input was rounded to `dtype`."""
        farthest = max(abs(end - mean) for end in (self.low, self.high) for mean in self.mean or (0.0,))
        return 2 * torch.finfo(dtype).eps * farthest

    def _affine(self, like: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return mean and std in the shape of `like`'s channels. They stay on the device, so the loop never waits."""
        for name in ("mean", "std"):
            given: tuple[float, ...] | None = getattr(self, name)
            if given is not None and len(given) != 1 and (like.ndim < 2 or len(given) != like.shape[1]):
                raise InputError(f"{name} has {len(given)} entries for inputs [N, …] of shape {tuple(like.shape)}")
        return _constants(self.mean, self.std, like.ndim, like.device, dtype)


def check_batch(x: Tensor) -> None:
    """Refuse anything but a batch [N, …] of at least one item."""
    if x.ndim < 2:
        shape = tuple(x.shape)
        raise InputError(
            f"x must be a batch [N, …], got the shape {shape}; one input is x[None], one feature x[:, None]"
        )
    if not x.numel():
        raise InputError("there is no item to attack")


def _channels(name: str, given: Any) -> tuple[float, ...]:
    """Return one number per channel, or one number for all channels."""
    several = isinstance(given, Iterable) and not isinstance(given, (str, bytes)) and getattr(given, "ndim", 1) > 0
    found = tuple(number(f"bounds: {name}", value) for value in (given if several else (given,)))
    if not found:
        raise InputError(f"bounds: {name}={given!r} must be one number per channel, or one for all")
    return found


@lru_cache(maxsize=64)
def _constants(
    mean: tuple[float, ...] | None, std: tuple[float, ...] | None, ndim: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    shape = (-1, *[1] * (ndim - 2))
    with torch.inference_mode(False):  # later calls compute gradients with these cached tensors
        made = [torch.tensor(values, dtype=torch.float64).reshape(shape) for values in (mean or (0.0,), std or (1.0,))]
        return made[0].to(device, dtype), made[1].to(device, dtype)
