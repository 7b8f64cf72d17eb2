"""Blur ∘ Prob in one pass over memory, forward and backward (Triton), for channels-last and NCHW maps.

The map is shared out among lanes: each owns a few neighbouring columns of a channel or a vector of channels, and a
block of rows. Backward is the transposed blur times Prob's slope, recomputed from the input: nothing is stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd import forward_ad

from calibrant.nn.kernels import smooth_triton

MAX_TAPS = 5
UPPER = {"tanh": 0, "relu6": 1, "constant": 2, "none": 3}
PADDING = {"replicate": 0, "reflect": 1, "zero": 2}
BYTES = 16  # of one access by one lane


@dataclass(frozen=True)
class Shape:
    """How the work is cut: columns a lane owns (NCHW: what one access holds), rows it walks down, rows in flight at
    once, warps of a program."""

    columns: int
    rows: int
    flight: int
    warps: int


SHAPES = {
    ("forward", "channels_last", 1): Shape(2, 8, 4, 4),
    ("forward", "channels_last", 2): Shape(2, 8, 4, 4),
    ("forward", "channels_last", 3): Shape(2, 16, 2, 4),
    ("forward", "channels_last", 5): Shape(2, 56, 2, 4),
    ("forward", "nchw", 1): Shape(8, 8, 4, 4),
    ("forward", "nchw", 2): Shape(8, 8, 4, 4),
    ("forward", "nchw", 3): Shape(8, 8, 4, 4),
    ("forward", "nchw", 5): Shape(8, 56, 4, 4),
    ("backward", "channels_last", 1): Shape(1, 16, 2, 4),
    ("backward", "channels_last", 2): Shape(1, 16, 2, 4),
    ("backward", "channels_last", 3): Shape(1, 16, 1, 4),
    ("backward", "channels_last", 5): Shape(1, 56, 2, 4),
    ("backward", "nchw", 1): Shape(8, 8, 4, 4),
    ("backward", "nchw", 2): Shape(8, 8, 4, 4),
    ("backward", "nchw", 3): Shape(8, 8, 2, 2),
    ("backward", "nchw", 5): Shape(8, 56, 1, 4),
}
"""By layout and number of taps: the fastest of `benchmarks/smoothing.py --tune` on an H200 (one is cut as two, and four
as five)."""


def fits(x: Tensor, taps: Sequence[float]) -> bool:
    """4-D maps in float32 or half precision, at least as large as the kernel, of up to five taps; not in torch.func."""
    if x.ndim != 4 or len(taps) > MAX_TAPS or x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return False
    if not torch.compiler.is_compiling() and (
        torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    ):
        return False  # vmap, dual numbers and the like: the kernel would drop a tangent, the plain path has the rules
    n, c, h, w = x.shape
    return min(h, w) >= len(taps) and n * c > 0 and c * h * w < 2**31  # offsets within a map are 32 bits


def _format(x: Tensor) -> torch.memory_format:
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return torch.channels_last
    return torch.contiguous_format


def _laid_out(x: Tensor) -> tuple[Tensor, bool]:
    """The map in a layout the kernel knows, and whether that is NCHW; what lies in one already is not asked twice."""
    if x.is_contiguous():
        return x, True
    if x.is_contiguous(memory_format=torch.channels_last):
        return x, False
    return x.contiguous(), True


@cache  # of names and numbers alone: an eager step asks eight times, and what it pays is Python
def _plan(
    name: str, size: tuple[int, ...], nchw: bool, wide: int, k: int, padding: str, upper: str, fast: bool
) -> tuple[tuple[int], tuple[int, ...], tuple[float, ...], dict[str, Any]]:
    """(grid, integers, taps that are none, constants) of a launch on maps of this size, `wide` numbers an access."""
    n, c, h, w = size
    shape = SHAPES[name, "nchw" if nchw else "channels_last", 5 if k == 4 else k]
    if nchw:  # a lane's columns are one wide access, where rows divide so
        u = 8 if wide == 8 and w % 8 == 0 else 4
        maps, vector, vectors = n * c, 1, 1
    else:
        u, vector = shape.columns, math.gcd(c, wide)
        maps, vectors = n, c // vector
    across = triton.cdiv(w, u)
    steps = triton.cdiv(triton.cdiv(h, triton.cdiv(h, shape.rows)), shape.flight)
    down = triton.cdiv(h, steps * shape.flight)
    groups, lanes = maps * down * across * vectors, 32 * shape.warps
    constants = {
        "K": k, "NCHW": nchw, "EXACT": w % u == 0, "U": u, "V": vector, "G": lanes, "B": shape.flight,
        "num_warps": shape.warps, "PAD": PADDING[padding], "UPPER": UPPER[upper], "FAST": fast,
    }  # fmt: skip
    integers = (h, w, across, vectors, groups, down, steps)
    return (triton.cdiv(groups, lanes),), integers, (0.0,) * (MAX_TAPS - k), constants


def cut(key: tuple[str, str, int], shape: Shape) -> None:
    """Another cut for the launches to come: for tuning."""
    SHAPES[key] = shape
    _plan.cache_clear()


def _launch(
    kernel: Any, tensors: Sequence[Tensor], nchw: bool, taps: Sequence[float], upper: str, tau: float, scale: float,
    padding: str,
) -> None:  # fmt: skip
    x = tensors[0]
    wide, cuda = BYTES // x.element_size(), x.is_cuda
    grid, integers, none, constants = _plan(
        kernel.__name__, x.shape, nchw, wide, len(taps), padding, upper, cuda and wide == 8
    )
    here = not cuda or x.device.index == torch.cuda.current_device()
    with nullcontext() if here else torch.cuda.device(x.device):
        kernel[grid](*tensors, *integers, tau, scale, *taps, *none, **constants)


def _forward(x: Tensor, taps: Sequence[float], upper: str, tau: float, padding: str) -> Tensor:
    x, nchw = _laid_out(x)
    out = torch.empty_like(x)
    scale = tau if upper == "tanh" else 1 / tau if upper == "constant" else 1.0
    _launch(smooth_triton.forward, (x, out), nchw, taps, upper, tau, scale, padding)
    return out


def _backward(x: Tensor, gradient: Tensor, taps: Sequence[float], upper: str, tau: float, padding: str) -> Tensor:
    x, nchw = _laid_out(x)
    gradient = gradient.contiguous(memory_format=torch.contiguous_format if nchw else torch.channels_last)
    out = torch.empty_like(x)
    scale = 1 / tau if upper == "constant" else 1.0
    _launch(smooth_triton.backward, (x, gradient, out), nchw, taps, upper, tau, scale, padding)
    return out


def fused(x: Tensor, taps: tuple[float, ...], upper: str, tau: float, padding: str) -> Tensor:
    """Blur ∘ Prob of a 4-D CUDA map, in its own layout.

    Whatever traces (compile, export, fake tensors, any dispatch mode) sees the custom op. Plain eager code is spared
    its way through the dispatcher, which takes longer than a small map takes the device.
    """
    out: Tensor
    if type(x) is not Tensor or torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        out = smooth(x, list(taps), upper, tau, padding)
    elif x.requires_grad and torch.is_grad_enabled():
        out = _Eager.apply(x, taps, upper, tau, padding)  # type: ignore[no-untyped-call]
    else:
        out = _forward(x, taps, upper, tau, padding)
    return out


class _Eager(torch.autograd.Function):
    """The two launches. A second derivative is refused by the op: `reference()` is the path that has one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *settings: Any) -> Tensor:
        ctx.save_for_backward(x)
        ctx.settings = settings
        return _forward(x, *settings)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        taps, *rest = ctx.settings
        back = smooth_backward if torch.is_grad_enabled() else _backward
        return back(x, gradient, list(taps), *rest), None, None, None, None


@torch.library.custom_op("calibrant::smooth", mutates_args=())
def smooth(x: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    return _forward(x, taps, upper, tau, padding)


@torch.library.custom_op("calibrant::smooth_backward", mutates_args=())
def smooth_backward(x: Tensor, gradient: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    return _backward(x, gradient, taps, upper, tau, padding)


@smooth.register_fake
def _(x: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    return torch.empty_like(x, memory_format=_format(x))


@smooth_backward.register_fake
def _(x: Tensor, gradient: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    return torch.empty_like(x, memory_format=_format(x))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *ctx.settings = inputs
    ctx.save_for_backward(x)


def _backpropagate(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    (x,) = ctx.saved_tensors
    return smooth_backward(x, gradient, *ctx.settings), None, None, None, None


smooth.register_autograd(_backpropagate, setup_context=_remember)
