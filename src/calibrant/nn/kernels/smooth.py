"""Blur ∘ Prob in one pass over memory, forward and backward (Triton), for channels-last and NCHW maps.

A map is seen as [R, H, L]: L = W·C with neighbours C apart (channels-last), or L = W with neighbours 1 apart (NCHW).
A program owns a stretch of L for a few rows and walks down: each row is averaged along W once, and the last taps of
those averages stay in registers for the average along H, so that every number is read from memory about once.
Backward walks the same way over the transposed blur and recomputes Prob's slope from the input: nothing is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from calibrant.nn.kernels import smooth_triton

MAX_TAPS = 5
TILE, ROWS, WARPS = 1024, 16, 4
"""Numbers a program handles at once, rows it walks down, and its warps: measured on an H200."""

UPPER = {"tanh": 0, "relu6": 1, "constant": 2, "none": 3}
PADDING = {"replicate": 0, "reflect": 1, "zero": 2}


def fits(x: Tensor, taps: Sequence[float]) -> bool:
    """4-D maps in float32 or half precision, at least as large as the kernel, of up to five taps."""
    small = min(x.shape[-2:]) < max(len(taps), 3) if x.ndim == 4 else True
    return not small and len(taps) <= MAX_TAPS and x.dtype in (torch.float32, torch.float16, torch.bfloat16)


def _layout(x: Tensor) -> tuple[torch.memory_format, int, int, int, int]:
    """(memory format, R, H, neighbour stride S, row length L)"""
    n, c, h, w = x.shape
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return torch.channels_last, n, h, c, w * c
    return torch.contiguous_format, n * c, h, 1, w


def _launch(
    kernel: Any, tensors: Sequence[Tensor], x: Tensor, taps: Sequence[float], upper: str, tau: float, pad: str
) -> None:
    _, r, h, s, length = _layout(x)
    padded = [*map(float, taps), *[0.0] * (MAX_TAPS - len(taps))]
    lb = min(triton.next_power_of_2(length), TILE)
    rb, rows = max(1, TILE // lb), ROWS
    grid = (triton.cdiv(length, lb) * triton.cdiv(h, rows) * triton.cdiv(r, rb),)
    with torch.cuda.device(x.device):
        kernel[grid](
            *tensors, r, h, s, length, tau, *padded, K=len(taps), PAD=PADDING[pad], UPPER=UPPER[upper],
            FAST=x.dtype != torch.float32, RB=rb, LB=lb, ROWS=rows, num_warps=WARPS,
        )  # fmt: skip


@torch.library.custom_op("calibrant::smooth", mutates_args=())
def smooth(x: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    """Blur ∘ Prob of a 4-D CUDA map, in its own layout."""
    x = x.contiguous(memory_format=_layout(x)[0])
    out = torch.empty_like(x)
    _launch(smooth_triton.forward, (x, out), x, taps, upper, tau, padding)
    return out


@torch.library.custom_op("calibrant::smooth_backward", mutates_args=())
def smooth_backward(x: Tensor, gradient: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    x = x.contiguous(memory_format=_layout(x)[0])
    gradient = gradient.contiguous(memory_format=_layout(x)[0])
    out = torch.empty_like(x)
    _launch(smooth_triton.backward, (x, gradient, out), x, taps, upper, tau, padding)
    return out


@smooth.register_fake
def _(x: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    return torch.empty_like(x, memory_format=_layout(x)[0])


@smooth_backward.register_fake
def _(x: Tensor, gradient: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    return torch.empty_like(x, memory_format=_layout(x)[0])


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *ctx.settings = inputs
    ctx.save_for_backward(x)


def _backpropagate(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    (x,) = ctx.saved_tensors
    return smooth_backward(x, gradient, *ctx.settings), None, None, None, None


smooth.register_autograd(_backpropagate, setup_context=_remember)
