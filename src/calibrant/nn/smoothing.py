"""Spatial smoothing (SS Eq. 5–8, 40–41): Smooth = Blur ∘ Prob, a layer that behaves like a small ensemble.

    Prob(z) = ReLU(upper(z)),   upper: tanh_τ(z) = τ tanh(z/τ) (default, τ = 10), min(z, 6), z/τ (τ = 5), or z
    Blur(p) = p averaged over neighbouring points with k ⊗ kᵀ / ‖k‖₁²

Prob turns feature maps into probabilities up to a scale, and neighbouring points are predictions of almost the same
thing, so the blur averages an ensemble.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.fx import Proxy, wrap

from calibrant.errors import InputError, MissingDependencyError
from calibrant.functional.settings import number, positive
from calibrant.nn.blur import PADDINGS, Padding, blur, blurred, check_map, check_values, kernel_of

Upper = Literal["tanh", "relu6", "constant", "none", "identity"]
TAU = {"tanh": 10.0, "relu6": 6.0, "constant": 5.0, "none": 1.0, "identity": 1.0}
"""The paper's τ of each upper bound (SS §2.1, App. B.1). `relu6` bounds at τ, by default 6; the last two have no τ.

`none` is ReLU alone. `identity` leaves out ReLU too: Blur without Prob, which App. F shows to do harm.
"""

wrap("blur")
wrap("bounded")  # torch.fx writes both into its graphs as single calls
_references = 0  # number of open `reference()` scopes; torch.compile cannot read a ContextVar


@contextmanager
def reference() -> Iterator[None]:
    """Make every smoothing layer use the plain PyTorch path, for Hessian products and comparisons."""
    global _references
    _references += 1
    try:
        yield
    finally:
        _references -= 1


def bounded(z: Tensor, upper: Upper, tau: float) -> Tensor:
    """Return ReLU(upper(z)) (SS Eq. 7). Derivatives of every order exist."""
    check_values(z)
    if upper == "tanh":
        return torch.tanh(z.relu() / tau) * tau  # ReLU and tanh commute (Eq. 41)
    if upper == "relu6":
        return z.clamp(0, tau)
    if upper == "identity":
        return z
    return z.relu() / tau if upper == "constant" else z.relu()


class Prob(nn.Module):
    """Turn a feature map into probabilities, up to a scale."""

    def __init__(self, upper: Upper = "tanh", tau: float | None = None) -> None:
        super().__init__()
        if not isinstance(upper, str) or upper not in TAU:
            raise InputError(f"prob={upper!r} is unknown; use {', '.join(TAU)}")
        self.upper: Upper = upper
        self.tau = TAU[upper] if tau is None else number("tau", tau)
        positive(self, "tau")

    def forward(self, z: Tensor) -> Tensor:
        return bounded(z, self.upper, self.tau)

    def extra_repr(self) -> str:
        return f"{self.upper}, tau={self.tau:g}"


class Blur(nn.Module):
    """Average each point with its neighbours. The size stays."""

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
    """Apply a `Smooth` with these settings. torch.fx writes this call into its graphs."""
    out: Tensor = Smooth(taps, prob=upper, tau=tau, padding=padding, axes=axes)(z)
    return out


_fused: Any = None  # cached, because an import statement in `forward` would cost time for every map


def _kernel() -> Any:
    """Return the kernel's function. Triton is imported only when a map is on a CUDA device."""
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
        p: Any = self._modules["prob"]  # faster than attributes, which nn.Module looks up in Python
        b: Any = self._modules["blur"]
        if isinstance(z, Proxy):  # symbolic tracing by torch.fx: one call in its graph
            return smoothed_map(z, b.taps, p.upper, p.tau, b.padding, b.axes)
        if z.is_cuda and not _references and b.axes == 2 and p.upper != "identity":
            # a compiled graph must not read a global that changes, or it would be compiled again
            fused = _kernel() if torch.compiler.is_compiling() else _fused or _kernel_once()
            out: Tensor | None = fused(z, (b.taps, p.upper, p.tau, b.padding))
            if out is not None:
                return out
        check_map(z.shape, len(b.taps), b.axes)
        return blurred(bounded(z, p.upper, p.tau), b.taps, b.padding, b.axes)
