"""Spatial smoothing (SS Eq. 5–8, 40–41): Smooth = Blur ∘ Prob, a layer that behaves like a small ensemble.

    Prob(z) = ReLU(upper(z)),   upper: tanh_τ(z) = τ tanh(z/τ) (default, τ = 10), min(z, 6), z/τ (τ = 5), or z
    Blur(p) = p averaged over neighbouring points with k ⊗ kᵀ / ‖k‖₁²

Feature maps become probabilities up to a scale, and neighbouring points are predictions of almost the same thing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, SupportsFloat

import torch
from torch import Tensor, nn
from torch.fx import Proxy, wrap

from calibrant.errors import InputError, MissingDependencyError
from calibrant.nn.blur import PADDINGS, Padding, blur, blurred, check_map, check_values, kernel_of

Upper = Literal["tanh", "relu6", "constant", "none", "identity"]
TAU = {"tanh": 10.0, "relu6": 6.0, "constant": 5.0, "none": 1.0, "identity": 1.0}
"""The paper's τ of each upper bound (SS §2.1, App. B.1); `relu6` bounds at τ, 6 by its name; the last two have no τ.

`none` is ReLU alone. `identity` leaves even that out: Blur without Prob, which App. F shows to do harm.
"""

wrap("blur")
wrap("prob")  # symbolic tracing (torch.fx) writes them into its graph as they are
_references = 0  # open `reference()` scopes. A plain number: torch.compile guards it, and cannot read a ContextVar


@contextmanager
def reference() -> Iterator[None]:
    """Inside, every smoothing layer takes the plain PyTorch path: for Hessian products and comparisons."""
    global _references
    _references += 1
    try:
        yield
    finally:
        _references -= 1


def prob(z: Tensor, upper: Upper = "tanh", tau: float | None = None) -> Tensor:
    """ReLU ∘ upper (SS Eq. 7), of any order of differentiation."""
    if upper not in TAU:
        raise _unknown(upper)
    if tau is None:
        tau = TAU[upper]
    elif type(tau) not in (float, int) or not 0 < tau < math.inf:  # plain numbers cost nothing, compiled or not
        tau = _positive(tau)
    return _bounded(z, upper, tau)


def _bounded(z: Tensor, upper: Upper, tau: float) -> Tensor:
    check_values(z)
    if upper == "tanh":
        return torch.tanh(z.relu() / tau) * tau  # ReLU and tanh commute (Eq. 41)
    if upper == "relu6":
        return z.clamp(0, tau)
    if upper == "identity":
        return z
    return z.relu() / tau if upper == "constant" else z.relu()


def _positive(tau: Any) -> float:
    try:
        value = float(tau) if isinstance(tau, SupportsFloat) and not isinstance(tau, bool) else math.nan
    except (TypeError, ValueError, RuntimeError):  # a tensor of several numbers
        value = math.nan
    if not 0 < value < math.inf:
        said = " ".join(repr(tau).split())
        raise InputError(f"tau={said} must be one number, positive and finite; prob='none' has no upper bound")
    return value


def _unknown(upper: Any) -> InputError:
    return InputError(f"prob={upper!r} is unknown; use {', '.join(TAU)}")


class Prob(nn.Module):
    """Feature map → probability, up to a scale."""

    def __init__(self, upper: Upper = "tanh", tau: float | None = None) -> None:
        super().__init__()
        if not isinstance(upper, str) or upper not in TAU:
            raise _unknown(upper)
        self.upper: Upper = upper
        self.tau = TAU[upper] if tau is None else _positive(tau)

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


@wrap
def smoothed_map(z: Tensor, taps: Sequence[float], upper: Upper, tau: float, padding: Padding, axes: int) -> Tensor:
    """What a `Smooth` of these settings says: as torch.fx writes it into graphs."""
    out: Tensor = Smooth(taps, prob=upper, tau=tau, padding=padding, axes=axes)(z)
    return out


_fused: Any = None  # an import statement in `forward` would call on Python's import system for every map


def _kernel() -> Any:
    """The kernel's entry. Triton is imported when a map lies on a CUDA device, not before."""
    try:
        from calibrant.nn.kernels import smooth
    except ImportError as error:
        remedy = "pip install triton (triton-windows on Windows), or nn.Sequential(Prob(…), Blur(…)), which need none"
        raise MissingDependencyError(f"Smooth on a CUDA device is a Triton kernel ({error}); {remedy}") from error
    return smooth.fused


def _kernel_once() -> Any:
    global _fused
    _fused = _kernel()
    return _fused


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
        p: Any = self._modules["prob"]  # as attributes, nn.Module looks them up in Python
        b: Any = self._modules["blur"]
        if isinstance(z, Proxy):  # symbolic tracing, which follows no settings: one call in its graph
            return smoothed_map(z, b.taps, p.upper, p.tau, b.padding, b.axes)
        if z.is_cuda and not _references and b.axes == 2 and p.upper != "identity":
            # a compiled graph reads no global that changes: it would be compiled again
            fused = _kernel() if torch.compiler.is_compiling() else _fused or _kernel_once()
            out: Tensor | None = fused(z, (b.taps, p.upper, p.tau, b.padding))
            if out is not None:
                return out
        check_map(z.shape, len(b.taps), b.axes)
        return blurred(_bounded(z, p.upper, p.tau), b.taps, b.padding, b.axes)
