"""Spatial smoothing (SS Eq. 5–8, 40–41): Smooth = Blur ∘ Prob, a layer that behaves like a small ensemble.

    Prob(z) = ReLU(upper(z)),   upper: tanh_τ(z) = τ tanh(z/τ) (default, τ = 10), min(z, 6), z/τ (τ = 5), or z
    Blur(p) = p averaged over neighbouring points with k ⊗ kᵀ / ‖k‖₁²

Feature maps become probabilities up to a scale, and neighbouring points are predictions of almost the same thing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.nn.blur import PADDINGS, Padding, blur, kernel_of

Upper = Literal["tanh", "relu6", "constant", "none"]
TAU = {"tanh": 10.0, "relu6": 6.0, "constant": 5.0, "none": 1.0}
"""The papers' τ of each upper bound (SS §2.3, App. B)."""

_reference: ContextVar[bool] = ContextVar("smoothing_reference", default=False)


@contextmanager
def reference() -> Iterator[None]:
    """Inside, every smoothing layer takes the plain PyTorch path: for Hessian products and comparisons."""
    token = _reference.set(True)
    try:
        yield
    finally:
        _reference.reset(token)


def prob(z: Tensor, upper: Upper = "tanh", tau: float | None = None) -> Tensor:
    """ReLU ∘ upper (SS Eq. 7)."""
    t = TAU[upper] if tau is None else tau
    if upper == "tanh":
        return torch.relu(t * torch.tanh(z / t))
    if upper == "relu6":
        return z.clamp(0, t)
    return torch.relu(z / t if upper == "constant" else z)


class Prob(nn.Module):
    """Feature map → probability, up to a scale."""

    def __init__(self, upper: Upper = "tanh", tau: float | None = None) -> None:
        super().__init__()
        if upper not in TAU:
            raise InputError(f"prob={upper!r} is unknown; use {', '.join(TAU)}")
        if tau is not None and not tau > 0:
            raise InputError(f"tau={tau} must be positive")
        self.upper: Upper = upper
        self.tau = TAU[upper] if tau is None else float(tau)

    def forward(self, z: Tensor) -> Tensor:
        return prob(z, self.upper, self.tau)

    def extra_repr(self) -> str:
        return f"{self.upper}, tau={self.tau:g}"


class Blur(nn.Module):
    """Average over neighbours; keeps the size."""

    def __init__(self, kernel: Sequence[float] | str = (1, 1), padding: Padding = "replicate", axes: int = 2) -> None:
        super().__init__()
        if padding not in PADDINGS:
            raise InputError(f"padding={padding!r} is unknown; use {', '.join(PADDINGS)}")
        if axes not in (1, 2, 3):
            raise InputError(f"axes={axes} must be 1, 2 or 3")
        self.taps = kernel_of(kernel)
        self.padding: Padding = padding
        self.axes = axes

    def forward(self, x: Tensor) -> Tensor:
        return blur(x, self.taps, self.padding, self.axes)

    def extra_repr(self) -> str:
        return f"{tuple(round(v, 4) for v in self.taps)}, {self.padding}, {self.axes}-d"


class Smooth(nn.Module):
    """Blur ∘ Prob, fused into one pass over memory on a CUDA device."""

    def __init__(
        self,
        kernel: Sequence[float] | str = (1, 1),
        *,
        prob: Upper = "tanh",
        tau: float | None = None,
        padding: Padding = "replicate",
        axes: int = 2,
    ) -> None:
        super().__init__()
        self.prob = Prob(prob, tau)
        self.blur = Blur(kernel, padding, axes)

    def forward(self, z: Tensor) -> Tensor:
        if z.is_cuda and not _reference.get() and self.blur.axes == 2:
            from calibrant.nn.kernels import smooth

            if smooth.fits(z, self.blur.taps):
                fused: Tensor = smooth.smooth(
                    z, list(self.blur.taps), self.prob.upper, self.prob.tau, self.blur.padding
                )
                return fused
        plain: Tensor = self.blur(self.prob(z))
        return plain
