"""θ + σ·ε in one pass over memory on a CUDA device: draw, scale, add and store, fused (Triton).

The generator's counter is the position of a number in the concatenation of all tensors, so the noise depends only on
the seed and the layout of the parameters, not on the launch. The generator is Philox4x32 with 7 rounds, the fewest that
pass BigCrush (Salmon 2011). Box–Muller uses the special-function unit, because the arithmetic must keep up with memory;
its sine and cosine are accurate to 2⁻²⁰ on [−π, π], the range of the angle.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512
"""Calls of the generator per program; each gives four neighbouring numbers."""

WARPS = 4


@triton.jit
def _unit(bits):  # type: ignore[no-untyped-def]
    """A number in [1, 2): 23 random bits as the mantissa of a float."""
    return ((bits >> 9) | 0x3F800000).to(tl.float32, bitcast=True)


@triton.jit
def _normals(first, second):  # type: ignore[no-untyped-def]
    """Box–Muller: two independent standard normals from two words."""
    angle = 6.2831853 * (_unit(second) - 1.5)
    cosine = tl.inline_asm_elementwise(
        "cos.approx.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1
    )
    sine = tl.inline_asm_elementwise("sin.approx.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1)
    radius = tl.sqrt(-1.3862944 * tl.log2(2.0 - _unit(first)))  # −2 ln u, with u in (0, 1]
    return radius * cosine, radius * sine


@triton.jit(do_not_specialize=["seed"])  # type: ignore[untyped-decorator]  # every sixteenth would compile again
def _perturb(  # type: ignore[no-untyped-def]
    target, original, count, sigma, seed, offset, UNIFORM: tl.constexpr, BLOCK: tl.constexpr
):
    block = tl.program_id(0)
    i, j, k, m = tl.randint4x(seed, offset + block * BLOCK + tl.arange(0, BLOCK), 7)
    if UNIFORM:  # ±√3: the variance of the Gaussian
        a, b = 3.4641016 * (_unit(i) - 1.5), 3.4641016 * (_unit(j) - 1.5)
        c, d = 3.4641016 * (_unit(k) - 1.5), 3.4641016 * (_unit(m) - 1.5)
    else:
        a, b = _normals(i, j)
        c, d = _normals(k, m)
    # one call's four numbers go to four neighbours, so that a thread reads and writes 16 bytes at once
    noise = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [4 * BLOCK])
    at = block * (4 * BLOCK) + tl.arange(0, 4 * BLOCK)
    value = tl.load(original + at, mask=at < count, other=0.0)
    tl.store(target + at, value + sigma * noise, mask=at < count)


def perturb(target: Tensor, original: Tensor, sigma: float, seed: int, offset: int, uniform: bool) -> int:
    """Write original + σ·ε into `target` (both dense, same layout); returns the counter after it."""
    count = target.numel()
    blocks = triton.cdiv(count, 4 * BLOCK)
    with torch.cuda.device(target.device):
        _perturb[(blocks,)](target, original, count, sigma, seed, offset, UNIFORM=uniform, BLOCK=BLOCK, num_warps=WARPS)
    return int(offset + blocks * BLOCK)


def fits(target: Tensor, original: Tensor) -> bool:
    """Whether the kernel can be used: dense CUDA tensors of one layout, with fewer than 2³¹ numbers."""
    dense = target.is_contiguous() or (target.ndim == 4 and target.is_contiguous(memory_format=torch.channels_last))
    same = target.stride() == original.stride() and 0 < target.numel() < 2**31 - 4 * BLOCK
    return target.is_cuda and dense and same and target.dtype in (torch.float32, torch.float16, torch.bfloat16)
