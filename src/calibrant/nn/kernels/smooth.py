"""Blur ∘ Prob in one pass over memory, forward and backward (Triton), for channels-last and NCHW maps.

The map is shared out among lanes: each owns a few neighbouring columns of a channel or a vector of channels, and a
block of rows. Backward is the transposed blur times Prob's slope, recomputed from the input: nothing is stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

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
    ("forward", "channels_last", 1): Shape(1, 16, 4, 4),
    ("forward", "channels_last", 2): Shape(2, 16, 2, 4),
    ("forward", "channels_last", 3): Shape(2, 16, 2, 4),
    ("forward", "channels_last", 5): Shape(2, 16, 1, 4),
    ("forward", "nchw", 1): Shape(8, 16, 4, 4),
    ("forward", "nchw", 2): Shape(8, 16, 2, 4),
    ("forward", "nchw", 3): Shape(8, 16, 2, 4),
    ("forward", "nchw", 5): Shape(8, 16, 2, 4),
    ("backward", "channels_last", 1): Shape(1, 16, 2, 4),
    ("backward", "channels_last", 2): Shape(2, 16, 2, 4),
    ("backward", "channels_last", 3): Shape(2, 16, 1, 4),
    ("backward", "channels_last", 5): Shape(1, 16, 2, 4),
    ("backward", "nchw", 1): Shape(8, 16, 2, 4),
    ("backward", "nchw", 2): Shape(8, 16, 2, 4),
    ("backward", "nchw", 3): Shape(8, 16, 2, 4),
    ("backward", "nchw", 5): Shape(8, 16, 2, 4),
}
"""By layout and number of taps (four as five): the fastest of `benchmarks/smoothing.py --tune` on an H200."""


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


def _launch(
    which: str, tensors: Sequence[Tensor], taps: Sequence[float], upper: str, tau: float, scale: float, padding: str
) -> None:
    x, k = tensors[0], len(taps)
    n, c, h, w = x.shape
    nchw = _format(x) is torch.contiguous_format
    shape = SHAPES[which, "nchw" if nchw else "channels_last", 5 if k == 4 else k]
    u, wide = shape.columns, BYTES // x.element_size()
    if nchw:  # a lane's columns are one wide access, where rows divide so
        u = next((v for v in (8, 4) if v <= wide and w % v == 0), wide)
        maps, vector, vectors = n * c, 1, 1
    else:
        vector = math.gcd(c, wide)
        maps, vectors = n, c // vector
    across = triton.cdiv(w, u)
    steps = triton.cdiv(triton.cdiv(h, triton.cdiv(h, shape.rows)), shape.flight)
    down = triton.cdiv(h, steps * shape.flight)
    groups, lanes = maps * down * across * vectors, 32 * shape.warps
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
        getattr(smooth_triton, which)[(triton.cdiv(groups, lanes),)](
            *tensors, h, w, across, vectors, groups, down, steps, tau, scale, *taps, *[0.0] * (MAX_TAPS - k),
            K=k, PAD=PADDING[padding], UPPER=UPPER[upper], FAST=x.is_cuda and x.element_size() == 2, NCHW=nchw,
            EXACT=w % u == 0, U=u, V=vector, G=lanes, B=shape.flight, num_warps=shape.warps,
        )  # fmt: skip


@torch.library.custom_op("calibrant::smooth", mutates_args=())
def smooth(x: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    """Blur ∘ Prob of a 4-D CUDA map, in its own layout."""
    x = x.contiguous(memory_format=_format(x))
    out = torch.empty_like(x)
    scale = {"tanh": tau, "constant": 1 / tau}.get(upper, 1.0)
    _launch("forward", (x, out), taps, upper, tau, scale, padding)
    return out


@torch.library.custom_op("calibrant::smooth_backward", mutates_args=())
def smooth_backward(x: Tensor, gradient: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    x = x.contiguous(memory_format=_format(x))
    gradient = gradient.contiguous(memory_format=_format(x))
    out = torch.empty_like(x)
    scale = 1 / tau if upper == "constant" else 1.0
    _launch("backward", (x, gradient, out), taps, upper, tau, scale, padding)
    return out


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
