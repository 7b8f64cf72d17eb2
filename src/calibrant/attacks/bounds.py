"""Where an attack may go, and the unit it is measured in: pixels in [low, high], whatever the network was fed.

    pixel = input · std + mean,   low ≤ pixel ≤ high

A network takes normalised inputs; budgets and distances are of pixels (AR A.4: images in [0, 1]). `mean` and `std` are
per channel, as in `calibrant.data`; without them the input is the pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from calibrant.errors import InputError

ROUNDING = 1e-4
"""Share of the range by which normalising in float32 and back may overstep a bound."""


@dataclass(frozen=True)
class Bounds:
    """The box of pixels, and the affine map from the network's input to it."""

    low: float = 0.0
    high: float = 1.0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            given: Sequence[float] | None = getattr(self, name)
            object.__setattr__(self, name, None if given is None else tuple(float(value) for value in given))
        if not self.low < self.high:
            raise InputError(f"bounds need low < high, got [{self.low}, {self.high}]")
        if self.std is not None and min(self.std) <= 0:
            raise InputError(f"std={self.std} must be positive")

    @property
    def range(self) -> float:
        return self.high - self.low

    def pixels(self, x: Tensor) -> Tensor:
        """The network's input as pixels; an input outside the box is an error, rounding is clipped."""
        if not x.is_floating_point():
            raise InputError(f"attacks move real-valued inputs, not {x.dtype}; hand in what the network is fed")
        if not x.numel():
            raise InputError("there is no item to attack")
        pixel = self.denormalised(x)
        lowest, highest = torch.aminmax(pixel)
        slack = ROUNDING * self.range
        if not (bool(lowest >= self.low - slack) and bool(highest <= self.high + slack)):
            raise InputError(
                f"pixels reach from {lowest.item():.4g} to {highest.item():.4g}, outside the bounds "
                f"[{self.low:g}, {self.high:g}]; pass Bounds(low, high, mean=, std=) with the constants that the "
                "inputs were normalised by"
            )
        return self.clip(pixel)

    def denormalised(self, x: Tensor) -> Tensor:
        """The network's input as pixels in float32 or wider, wherever they lie."""
        at_least_single = torch.promote_types(x.dtype, torch.float32)  # halves cannot hold a small perturbation
        mean, std = self._affine(x, at_least_single)
        return x.detach().to(at_least_single) * std + mean

    def inputs(self, pixel: Tensor, dtype: torch.dtype) -> Tensor:
        """Pixels as what the network is fed."""
        if self.mean is None and self.std is None:
            return pixel.to(dtype)
        mean, std = self._affine(pixel, pixel.dtype)
        return ((pixel - mean) / std).to(dtype)

    def clip(self, pixel: Tensor) -> Tensor:
        return pixel.clamp(self.low, self.high)

    def _affine(self, like: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """mean and std, broadcast over the channels of `like`; cached on the device, as the loop must not wait."""
        for name in ("mean", "std"):
            given: tuple[float, ...] | None = getattr(self, name)
            if given is not None and len(given) != 1 and (like.ndim < 2 or len(given) != like.shape[1]):
                raise InputError(f"{name} has {len(given)} entries for inputs [N, …] of shape {tuple(like.shape)}")
        return _constants(self.mean, self.std, like.ndim, like.device, dtype)


@lru_cache(maxsize=64)
def _constants(
    mean: tuple[float, ...] | None, std: tuple[float, ...] | None, ndim: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    shape = (-1, *[1] * (ndim - 2))
    with torch.inference_mode(False):  # they are kept, and gradients go through them later
        made = [torch.tensor(values, dtype=torch.float64).reshape(shape) for values in (mean or (0.0,), std or (1.0,))]
        return made[0].to(device, dtype), made[1].to(device, dtype)
