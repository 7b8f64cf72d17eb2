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
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import libdevice

MAX_TAPS = 5
UPPER = {"tanh": 0, "relu6": 1, "constant": 2, "none": 3}
PADDING = {"replicate": 0, "reflect": 1, "zero": 2}


@triton.jit  # type: ignore[untyped-decorator]
def _tanh(x, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    if FAST:  # one instruction, 11 bits: more than half precision keeps
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    return libdevice.tanh(x)


@triton.jit  # type: ignore[untyped-decorator]
def _prob(z, tau, UPPER: tl.constexpr, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    if UPPER == 0:
        z = tau * _tanh(z / tau, FAST)
    elif UPPER == 1:
        z = tl.minimum(z, tau)
    elif UPPER == 2:
        z = z / tau
    return tl.maximum(z, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _slope(z, tau, UPPER: tl.constexpr, FAST: tl.constexpr):  # type: ignore[no-untyped-def]
    if UPPER == 0:
        t = _tanh(z / tau, FAST)
        return tl.where(z > 0, 1 - t * t, 0.0)
    if UPPER == 1:
        return tl.where((z >= 0) & (z <= tau), 1.0, 0.0)  # clamp's own subgradient at both ends
    if UPPER == 2:
        return tl.where(z > 0, 1 / tau, 0.0)
    return tl.where(z > 0, 1.0, 0.0)


@triton.jit  # type: ignore[untyped-decorator]
def _tap(i: tl.constexpr, k0, k1, k2, k3, k4):  # type: ignore[no-untyped-def]
    if i == 0:
        return k0
    if i == 1:
        return k1
    if i == 2:
        return k2
    if i == 3:
        return k3
    return k4


@triton.jit  # type: ignore[untyped-decorator]
def _blurred_row(  # type: ignore[no-untyped-def]
    x, base, h, w, mask, H, W, S, L, tau, k0, k1, k2, k3, k4,
    K: tl.constexpr, PAD: tl.constexpr, UPPER: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """Prob averaged along W in row h of the padded map."""
    LEFT: tl.constexpr = (K - 1) // 2
    if PAD == 0:
        row = tl.minimum(tl.maximum(h, 0), H - 1)
    elif PAD == 1:
        row = tl.where(h < 0, -h, tl.where(h >= H, 2 * (H - 1) - h, h))
    else:
        row = h
        mask = mask & (h >= 0) & (h < H)
    at = base + row * L
    total = tl.zeros_like(w).to(tl.float32)
    for j in tl.static_range(K):
        column = w + (j - LEFT)
        seen = mask
        if PAD == 0:
            column = tl.minimum(tl.maximum(column, 0), W - 1)
        elif PAD == 1:
            column = tl.abs(column)
            column = tl.where(column >= W, 2 * (W - 1) - column, column)
        else:
            seen = mask & (column >= 0) & (column < W)
        z = tl.load(x + at + (column - w) * S, mask=seen, other=0.0).to(tl.float32)
        total += _tap(j, k0, k1, k2, k3, k4) * _prob(z, tau, UPPER, FAST)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    x, y, count, H, W, S, L, tau, k0, k1, k2, k3, k4,
    K: tl.constexpr, PAD: tl.constexpr, UPPER: tl.constexpr, FAST: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    LEFT: tl.constexpr = (K - 1) // 2
    q = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = q < count
    p = (q % L).to(tl.int32)
    base = (q // L) * H * L + p
    w = p // S
    first = tl.program_id(1) * ROWS
    zero = tl.zeros([BLOCK], tl.float32)
    a, b, c, d = zero, zero, zero, zero
    if K > 1:
        a = _blurred_row(x, base, first - LEFT, w, mask, H, W, S, L, tau, k0, k1, k2, k3, k4, K, PAD, UPPER, FAST)
    if K > 2:
        b = _blurred_row(x, base, first - LEFT + 1, w, mask, H, W, S, L, tau, k0, k1, k2, k3, k4, K, PAD, UPPER, FAST)
    if K > 3:
        c = _blurred_row(x, base, first - LEFT + 2, w, mask, H, W, S, L, tau, k0, k1, k2, k3, k4, K, PAD, UPPER, FAST)
    if K > 4:
        d = _blurred_row(x, base, first - LEFT + 3, w, mask, H, W, S, L, tau, k0, k1, k2, k3, k4, K, PAD, UPPER, FAST)
    for h in range(first, tl.minimum(first + ROWS, H)):
        new = _blurred_row(
            x, base, h + K // 2, w, mask, H, W, S, L, tau, k0, k1, k2, k3, k4, K, PAD, UPPER, FAST
        )  # fmt: skip
        if K == 1:
            out = k0 * new
        elif K == 2:
            out = k0 * a + k1 * new
            a = new
        elif K == 3:
            out = k0 * a + k1 * b + k2 * new
            a, b = b, new
        elif K == 4:
            out = k0 * a + k1 * b + k2 * c + k3 * new
            a, b, c = b, c, new
        else:
            out = k0 * a + k1 * b + k2 * c + k3 * d + k4 * new
            a, b, c, d = b, c, d, new
        tl.store(y + base + h * L, out.to(y.dtype.element_ty), mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _spread_row(  # type: ignore[no-untyped-def]
    g, base, h, w, mask, H, W, S, L, k0, k1, k2, k3, k4, K: tl.constexpr, PAD: tl.constexpr
):
    """The transposed average along W of the gradient's row h; rows outside the map are zero."""
    LEFT: tl.constexpr = (K - 1) // 2
    RIGHT: tl.constexpr = K // 2
    mask = mask & (h >= 0) & (h < H)
    at = base + h * L
    total = tl.zeros_like(w).to(tl.float32)
    for j in tl.static_range(K):
        shift = LEFT - j
        seen = mask & (w + shift >= 0) & (w + shift < W)
        total += _tap(j, k0, k1, k2, k3, k4) * tl.load(g + at + shift * S, mask=seen, other=0.0).to(tl.float32)
    if PAD != 2:  # what the border column stood in for comes back to it
        for u in tl.static_range(1, LEFT + 1):
            here = mask & (w == (0 if PAD == 0 else u))
            for j in tl.static_range(K):
                if LEFT - u - j >= 0:
                    z = tl.load(g + at + (LEFT - u - j - w) * S, mask=here, other=0.0).to(tl.float32)
                    total += _tap(j, k0, k1, k2, k3, k4) * z
        for u in tl.static_range(RIGHT):
            here = mask & (w == (W - 1 if PAD == 0 else W - 2 - u))
            for j in tl.static_range(K):
                if u - j + LEFT < 0:
                    z = tl.load(g + at + (W + u - j + LEFT - w) * S, mask=here, other=0.0).to(tl.float32)
                    total += _tap(j, k0, k1, k2, k3, k4) * z
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    x, g, dx, count, H, W, S, L, tau, k0, k1, k2, k3, k4,
    K: tl.constexpr, PAD: tl.constexpr, UPPER: tl.constexpr, FAST: tl.constexpr,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    LEFT: tl.constexpr = (K - 1) // 2
    RIGHT: tl.constexpr = K // 2
    q = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = q < count
    p = (q % L).to(tl.int32)
    base = (q // L) * H * L + p
    w = p // S
    first = tl.program_id(1) * ROWS
    zero = tl.zeros([BLOCK], tl.float32)
    a, b, c, d = zero, zero, zero, zero
    if K > 1:
        a = _spread_row(g, base, first - RIGHT, w, mask, H, W, S, L, k0, k1, k2, k3, k4, K, PAD)
    if K > 2:
        b = _spread_row(g, base, first - RIGHT + 1, w, mask, H, W, S, L, k0, k1, k2, k3, k4, K, PAD)
    if K > 3:
        c = _spread_row(g, base, first - RIGHT + 2, w, mask, H, W, S, L, k0, k1, k2, k3, k4, K, PAD)
    if K > 4:
        d = _spread_row(g, base, first - RIGHT + 3, w, mask, H, W, S, L, k0, k1, k2, k3, k4, K, PAD)
    for h in range(first, tl.minimum(first + ROWS, H)):
        new = _spread_row(g, base, h + LEFT, w, mask, H, W, S, L, k0, k1, k2, k3, k4, K, PAD)
        if K == 1:
            out = k0 * new
        elif K == 2:
            out = k1 * a + k0 * new
            a = new
        elif K == 3:
            out = k2 * a + k1 * b + k0 * new
            a, b = b, new
        elif K == 4:
            out = k3 * a + k2 * b + k1 * c + k0 * new
            a, b, c = b, c, new
        else:
            out = k4 * a + k3 * b + k2 * c + k1 * d + k0 * new
            a, b, c, d = b, c, d, new
        if PAD != 2:
            for u in tl.static_range(1, LEFT + 1):
                if h == (0 if PAD == 0 else u):
                    for i in tl.static_range(K):
                        if LEFT - u - i >= 0:
                            out += _tap(i, k0, k1, k2, k3, k4) * _spread_row(
                                g, base, LEFT - u - i, w, mask, H, W, S, L, k0, k1, k2, k3, k4, K, PAD
                            )
            for u in tl.static_range(RIGHT):
                if h == (H - 1 if PAD == 0 else H - 2 - u):
                    for i in tl.static_range(K):
                        if u - i + LEFT < 0:
                            out += _tap(i, k0, k1, k2, k3, k4) * _spread_row(
                                g, base, H + u - i + LEFT, w, mask, H, W, S, L, k0, k1, k2, k3, k4, K, PAD
                            )
        z = tl.load(x + base + h * L, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx + base + h * L, (out * _slope(z, tau, UPPER, FAST)).to(dx.dtype.element_ty), mask=mask)


def fits(x: Tensor, taps: Sequence[float]) -> bool:
    """4-D maps in float32 or half precision, at least as large as the kernel, of up to five taps."""
    small = min(x.shape[-2:]) < max(len(taps), 3) if x.ndim == 4 else True
    return not small and len(taps) <= MAX_TAPS and x.dtype in (torch.float32, torch.float16, torch.bfloat16)


def _layout(x: Tensor) -> tuple[torch.memory_format, int, int, int, int, int]:
    """(memory format, H, W, neighbour stride S, row length L, R·L)"""
    n, c, h, w = x.shape
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return torch.channels_last, h, w, c, w * c, n * w * c
    return torch.contiguous_format, h, w, 1, w, n * c * w


def _launch(
    kernel: Any, tensors: Sequence[Tensor], x: Tensor, taps: Sequence[float], upper: str, tau: float, pad: str
) -> None:
    _, h, w, s, length, count = _layout(x)
    padded = [*map(float, taps), *[0.0] * (MAX_TAPS - len(taps))]
    block, rows = 1024, 16
    grid = (triton.cdiv(count, block), triton.cdiv(h, rows))
    with torch.cuda.device(x.device):
        kernel[grid](
            *tensors, count, h, w, s, length, tau, *padded, K=len(taps), PAD=PADDING[pad], UPPER=UPPER[upper],
            FAST=x.dtype != torch.float32, BLOCK=block, ROWS=rows, num_warps=4,
        )  # fmt: skip


@torch.library.custom_op("calibrant::smooth", mutates_args=())
def smooth(x: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    """Blur ∘ Prob of a 4-D CUDA map, in its own layout."""
    x = x.contiguous(memory_format=_layout(x)[0])
    out = torch.empty_like(x)
    _launch(_forward, (x, out), x, taps, upper, tau, padding)
    return out


@torch.library.custom_op("calibrant::smooth_backward", mutates_args=())
def smooth_backward(x: Tensor, gradient: Tensor, taps: list[float], upper: str, tau: float, padding: str) -> Tensor:
    x = x.contiguous(memory_format=_layout(x)[0])
    gradient = gradient.contiguous(memory_format=_layout(x)[0])
    out = torch.empty_like(x)
    _launch(_backward, (x, gradient, out), x, taps, upper, tau, padding)
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
