"""Blur ∘ Prob in one pass over memory, forward and backward (Triton), for channels-last and NCHW maps.

Each lane of the GPU owns a few neighbouring columns of one channel or of several, in a block of rows. Backward is the
transposed blur times the slope of Prob, which is recomputed from the input, so that nothing is stored.
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
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from calibrant.nn.kernels import smooth_triton

MAX_TAPS = 5
UPPER = {"tanh": 0, "relu6": 1, "constant": 2, "none": 3}
PADDING = {"replicate": 0, "reflect": 1, "zero": 2}
BYTES = 16  # read in one access by one lane
Settings = tuple[tuple[float, ...], str, float, str]  # taps, upper, tau, padding


@dataclass(frozen=True)
class Shape:
    """How the work is divided: columns per lane (NCHW: per access), rows per lane, rows in flight, warps per
    program."""

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
"""The fastest shapes of a search on an H200, by layout and number of taps (`benchmarks/smoothing.py --tune`, commit
0bc5413). One tap uses the shape of two, and four taps that of five."""


def fits(x: Tensor, taps: Sequence[float]) -> bool:
    """Return whether the kernel can take this map: 4-D, float32 or half precision, at least as large as its taps."""
    if x.ndim != 4 or len(taps) > MAX_TAPS or x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return False
    n, c, h, w = x.shape
    return min(h, w) >= len(taps) and n * c > 0 and c * h * w < 2**31  # offsets within a map are 32 bits


def _format(x: Tensor) -> torch.memory_format:
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return torch.channels_last
    return torch.contiguous_format


def _laid_out(x: Tensor) -> tuple[Tensor, bool]:
    """Return the map in a layout that the kernel takes, and whether that is NCHW."""
    if x.is_contiguous():
        return x, True
    if x.is_contiguous(memory_format=torch.channels_last):
        return x, False
    return x.contiguous(), True


@cache
def _plan(
    name: str, size: tuple[int, ...], nchw: bool, wide: int, k: int, padding: str, upper: str, fast: bool
) -> tuple[tuple[int], tuple[int, ...], tuple[float, ...], dict[str, Any]]:
    """Return (grid, integers, unused taps, constants) of a launch on maps of this size, `wide` numbers per access."""
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


Held = tuple[Any, int, Any, Any, tuple[Any, ...]]  # launcher, grid, function, its data, arguments after the addresses


class Pair:
    """The recorded launches for one kind of map, forward and backward."""

    __slots__ = ("backward", "forward")

    def __init__(self) -> None:
        self.forward: Held | None = None
        self.backward: Held | None = None


_held: dict[tuple[Any, ...], Pair] = {}
"""Recorded launches, by everything they depend on except addresses.

`kernel[grid](…)` examines each of its 28 arguments every time. Between the layers of a network, this Python code takes
longer than the device needs for the map. So a launch is recorded, and repeated through Triton's launcher directly."""

LAUNCHERS = ((3, 6), (3, 9))
"""The first and the last version of Triton whose launcher was seen to take the arguments of `_again`. The launcher is
not a public interface; with other versions, launches are not recorded."""
HOLDS = LAUNCHERS[0] <= tuple(int(part) for part in triton.__version__.split(".")[:2]) <= LAUNCHERS[1]


def _known(x: Tensor, settings: Settings) -> Pair | None:
    return _held.get((x.shape, x.stride(), x.dtype, x.get_device(), settings))


def _again(held: Held, device: int, *addresses: int) -> bool:
    """Repeat a launch; return False if an address is not aligned, as compiled, or the device is not the current one."""
    for address in addresses:
        if address % BYTES:
            return False
    if device != torch._C._cuda_getDevice():
        return False
    launch, grid, function, data, rest = held
    stream = torch._C._cuda_getCurrentRawStream(device)
    launch(grid, 1, 1, stream, function, data, None, None, None, *addresses, *rest)
    return True


def _launch(kernel: Any, tensors: Sequence[Tensor], nchw: bool, settings: Settings) -> None:
    x, (taps, upper, tau, padding) = tensors[0], settings
    wide, cuda = BYTES // x.element_size(), x.is_cuda
    grid, integers, none, constants = _plan(
        kernel.__name__, x.shape, nchw, wide, len(taps), padding, upper, cuda and wide == 8
    )
    forward = kernel is smooth_triton.forward
    scale = tau if forward and upper == "tanh" else 1 / tau if upper == "constant" else 1.0
    numbers = (*integers, tau, scale, *taps, *none)
    with torch.cuda.device(x.device) if cuda else nullcontext():
        compiled = kernel[grid](*tensors, *numbers, **constants)
    if HOLDS and cuda and not any(t.data_ptr() % BYTES for t in tensors):  # compiled for aligned addresses
        values = [constants[name] for name in kernel.arg_names if name in constants]
        pair = _held.setdefault((x.shape, x.stride(), x.dtype, x.get_device(), settings), Pair())
        held = compiled.run, grid[0], compiled.function, compiled.packed_metadata, (*numbers, *values)
        setattr(pair, kernel.__name__, held)


def _forward(x: Tensor, settings: Settings, pair: Pair | None) -> Tensor:
    if pair is not None and pair.forward is not None:
        out = torch.empty_like(x)
        if _again(pair.forward, x.get_device(), x.data_ptr(), out.data_ptr()):
            return out
    x, nchw = _laid_out(x)
    out = torch.empty_like(x)
    _launch(smooth_triton.forward, (x, out), nchw, settings)
    return out


def _backward(x: Tensor, gradient: Tensor, settings: Settings, pair: Pair | None) -> Tensor:
    if pair is not None and pair.backward is not None:
        if gradient.stride() != x.stride():
            gradient = gradient.contiguous(memory_format=_format(x))
        out = torch.empty_like(x)
        if _again(pair.backward, x.get_device(), x.data_ptr(), gradient.data_ptr(), out.data_ptr()):
            return out
    x, nchw = _laid_out(x)
    gradient = gradient.contiguous(memory_format=torch.contiguous_format if nchw else torch.channels_last)
    out = torch.empty_like(x)
    _launch(smooth_triton.backward, (x, gradient, out), nchw, settings)
    return out


def fused(x: Tensor, settings: Settings) -> Tensor | None:
    """Return Blur ∘ Prob of a 4-D CUDA map, in its own layout, or None if the plain path must be taken.

    Tracing (compile, export, fake tensors, any dispatch mode) sees the custom op. Eager code bypasses the dispatcher,
    which takes longer than the device needs for a small map.
    """
    taps = settings[0]
    if is_compiling():
        return smooth(x, list(taps), *settings[1:]) if fits(x, taps) else None
    if _are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return None  # under vmap or with dual numbers the kernel would drop a tangent; the plain path has the rules
    if type(x) is not Tensor or _len_torch_dispatch_stack():
        return smooth(x, list(taps), *settings[1:]) if fits(x, taps) else None
    pair = _known(x, settings)
    if pair is None and not fits(x, taps):
        return None
    if x.requires_grad and torch.is_grad_enabled():
        out: Tensor = _apply(x, settings, pair)
        return out
    return _forward(x, settings, pair)


class _Eager(torch.autograd.Function):
    """The two launches. The op refuses a second derivative, which the plain path has (`reference()`)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: Settings, pair: Pair | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.how = settings, pair
        return _forward(x, settings, pair)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (x,) = ctx.saved_tensors
        settings, pair = ctx.how
        if not torch.is_grad_enabled():
            return _backward(x, gradient, settings, pair), None, None
        taps, *rest = settings
        return smooth_backward(x, gradient, list(taps), *rest), None, None


_apply: Any = super(torch.autograd.Function, _Eager).apply
"""`_Eager.apply` without its check for torch.func's transforms, which `fused` has made already."""


@torch.library.custom_op("calibrant::smooth", mutates_args=())
def smooth(x: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    settings = tuple(taps), upper, tau, padding
    return _forward(x, settings, _known(x, settings))


@torch.library.custom_op("calibrant::smooth_backward", mutates_args=())
def smooth_backward(x: Tensor, gradient: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    settings = tuple(taps), upper, tau, padding
    return _backward(x, gradient, settings, _known(x, settings))


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
