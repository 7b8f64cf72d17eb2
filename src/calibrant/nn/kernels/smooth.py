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
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from calibrant.nn.kernels import smooth_triton

MAX_TAPS = 5
UPPER = {"tanh": 0, "relu6": 1, "constant": 2, "none": 3}
PADDING = {"replicate": 0, "reflect": 1, "zero": 2}
BYTES = 16  # of one access by one lane
Settings = tuple[tuple[float, ...], str, float, str]  # taps, upper, tau, padding


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
"""By layout and number of taps: the fastest of a search on an H200 (`benchmarks/smoothing.py --tune`, commit 0bc5413;
one is cut as two, and four as five)."""


def fits(x: Tensor, taps: Sequence[float]) -> bool:
    """4-D maps in float32 or half precision, at least as large as the kernel, of up to five taps."""
    if x.ndim != 4 or len(taps) > MAX_TAPS or x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return False
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


@cache
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


Held = tuple[Any, int, Any, Any, tuple[Any, ...]]  # Triton's launcher, grid, function, its data, what follows addresses


class Pair:
    """The launches of one map: backward finds its own where forward found its."""

    __slots__ = ("backward", "forward")

    def __init__(self) -> None:
        self.forward: Held | None = None
        self.backward: Held | None = None


_held: dict[tuple[Any, ...], Pair] = {}
"""Launches by all that they depend on but addresses.

`kernel[grid](…)` looks at each of its 28 arguments every time. Between the layers of a network, where the processor has
just run other code, each Python function on the way costs microseconds, and all of them more than the map takes the
device. So what was launched once is handed to Triton's launcher as it is."""

LAUNCHERS = ((3, 6), (3, 9))
"""The versions of Triton, first and last, whose launcher was seen to take what `_again` hands it. It is no public
interface: others look at their arguments every time."""
HOLDS = LAUNCHERS[0] <= tuple(int(part) for part in triton.__version__.split(".")[:2]) <= LAUNCHERS[1]


def _known(x: Tensor, settings: Settings) -> Pair | None:
    return _held.get((x.shape, x.stride(), x.dtype, x.get_device(), settings))


def _again(held: Held, device: int, *addresses: int) -> bool:
    """Launches it once more; not where the compiler was promised otherwise, or on another device than the current."""
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
    if HOLDS and cuda and not any(t.data_ptr() % BYTES for t in tensors):  # as Triton's compiler was promised
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
    """Blur ∘ Prob of a 4-D CUDA map, in its own layout; None where the plain path has to be taken.

    Whatever traces (compile, export, fake tensors, any dispatch mode) sees the custom op. Plain eager code is spared
    its way through the dispatcher, which takes longer than a small map takes the device.
    """
    taps = settings[0]
    if is_compiling():
        return smooth(x, list(taps), *settings[1:]) if fits(x, taps) else None
    if _are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return None  # vmap, dual numbers and the like: the kernel would drop a tangent, the plain path has the rules
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
    """The two launches. A second derivative is refused by the op: `reference()` is the path that has one."""

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
"""`_Eager.apply` without its own search for torch.func's transforms, after that of `fused`."""


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
