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
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack
from torch._C._functorch import is_legacy_batchedtensor
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.autograd import forward_ad
from torch.fx import Proxy, wrap

from calibrant.errors import InputError, MissingDependencyError
from calibrant.nn.blur import PADDINGS, Padding, Taps, averaged, blur, blurred, check_map, check_values, kernel_of

Upper = Literal["tanh", "relu6", "constant", "none", "identity"]
TAU = {"tanh": 10.0, "relu6": 6.0, "constant": 5.0, "none": 1.0, "identity": 1.0}
"""The paper's τ of each upper bound (SS §2.1, App. B.1); `relu6` bounds at τ, 6 by its name; the last two have no τ.

`none` is ReLU alone. `identity` leaves even that out: Blur without Prob, which App. F shows to do harm.
"""

wrap("blur")
wrap("prob")  # symbolic tracing (torch.fx) writes them into its graph as they are
aten = torch.ops.aten  # autograd's own kernels, which can write where they are told
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
    return _plain(z, upper, tau, (1.0,), "zero", 0)


def _plain(z: Tensor, upper: Upper, tau: float, taps: tuple[float, ...], padding: Padding, axes: int) -> Tensor:
    check_values(z)
    rule = _Smooth if torch.compiler.is_compiling() else _SmoothForward  # Dynamo takes no function with a jvp
    out: Tensor = rule.apply(z, upper, tau, Taps(taps), padding, axes)  # type: ignore[no-untyped-call]
    return out


class _Smooth(torch.autograd.Function):
    """Blur ∘ Prob. Autograd keeps z alone and computes Prob's slope again when it needs it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, upper: Upper, tau: float, taps: tuple[float, ...], padding: Padding, axes: int) -> Tensor:
        recorded = _recorded()
        p = _recorded_bounded(z, upper, tau) if recorded else _bounded(z, upper, tau)
        return p if len(taps) == 1 else averaged(p, taps, padding, axes, owned=not recorded)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        z, *ctx.settings = inputs
        ctx.save_for_backward(z)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (z,), (upper, tau, taps, padding, axes) = ctx.saved_tensors, ctx.settings
        blurs = len(taps) > 1
        if _observed(gradient):
            if blurs:
                gradient = blurred(gradient, taps, padding, axes, transposed=True)
            return _slope(z, upper, tau) * gradient, None, None, None, None, None
        if blurs:
            gradient = averaged(gradient, taps, padding, axes, transposed=True)
        out = _times_slope(gradient, z, upper, tau, owned=blurs)  # what came in belongs to others
        return out, None, None, None, None, None


class _SmoothForward(_Smooth):
    """The same with a derivative in forward mode: `torch.func.hessian` and forward-over-reverse products need it."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _Smooth.setup_context(ctx, inputs, output)
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        (z,), (upper, tau, taps, padding, axes) = ctx.saved_tensors, ctx.settings
        moved = tangent * _slope(z, upper, tau)
        return moved if len(taps) == 1 else blurred(moved, taps, padding, axes)


def _recorded() -> bool:
    """Whether operations are recorded (compile, export, make_fx), to be run and differentiated one by one later: then
    none may overwrite what autograd saved for another."""
    return (
        torch.compiler.is_compiling()  # first: Dynamo sees the constant, and does not ask what it cannot follow
        or _len_torch_dispatch_stack() > 0
        or _len_torch_dispatch_stack_pre_dispatch() > 0  # type: ignore[no-untyped-call]
    )


def _observed(gradient: Tensor) -> bool:
    """Whether this gradient is itself differentiated, batched or recorded, or has a class of its own."""
    return (
        torch.is_grad_enabled()
        or _recorded()
        or type(gradient) is not Tensor
        or _are_functorch_transforms_active()
        or is_legacy_batchedtensor(gradient)  # is_grads_batched, and Jacobians with vectorize
        or forward_ad._current_level >= 0
    )


def _recorded_bounded(z: Tensor, upper: Upper, tau: float) -> Tensor:
    """Prob's values by operations that autograd can follow; a compiler will fuse them."""
    if upper == "tanh":
        return torch.tanh(z.relu() / tau) * tau
    return z.relu() / tau if upper == "constant" else _bounded(z, upper, tau)


def _bounded(z: Tensor, upper: Upper, tau: float) -> Tensor:
    """Prob's values in one new map."""
    if upper == "tanh":
        return z.relu().div_(tau).tanh_().mul_(tau)  # ReLU and tanh commute (Eq. 41)
    if upper == "relu6":
        return z.clamp(0, tau)
    if upper == "identity":
        return z.clone()
    return z.relu().div_(tau) if upper == "constant" else z.relu()


def _slope(z: Tensor, upper: Upper, tau: float) -> Tensor:
    """Prob's derivative, itself differentiable; at the bends that of torch's own relu and clamp."""
    if upper == "tanh":
        t = torch.tanh(z / tau)
        return (1 - t * t) * (z > 0)
    if upper == "relu6":
        return ((z >= 0) & (z <= tau)).to(z.dtype)
    if upper == "identity":
        return torch.ones((), dtype=z.dtype, device=z.device)
    return (z > 0).to(z.dtype) / (tau if upper == "constant" else 1.0)


def _times_slope(gradient: Tensor, z: Tensor, upper: Upper, tau: float, *, owned: bool) -> Tensor:
    """gradient · slope, in the gradient itself where that is ours, with one new map at the most."""
    if upper == "identity":
        return gradient if owned else gradient.clone()
    if upper == "relu6":
        inside = z.clamp(0, tau).eq_(z)
        return gradient.mul_(inside) if owned else inside.mul_(gradient)
    if upper == "tanh":
        t = (z / tau).tanh_()
        gradient, owned = aten.tanh_backward.grad_input(gradient, t, grad_input=gradient if owned else t), True
    into = gradient if owned and gradient.stride() == z.stride() else torch.empty_like(z)
    aten.threshold_backward.grad_input(gradient, z, 0, grad_input=into)  # 0 where z ≤ 0, by no mask in memory
    return into.div_(tau) if upper == "constant" else into


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
        return _plain(z, p.upper, p.tau, b.taps, b.padding, b.axes)
