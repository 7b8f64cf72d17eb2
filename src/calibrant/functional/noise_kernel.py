"""θ + σ·ε in one pass over memory on a CUDA device: draw, scale, add and store, fused (Triton).

The counter of the generator is the position of a number in the concatenation of all tensors, so that the
noise depends on the seed and the layout of the parameters alone, not on the launch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def _perturb(  # type: ignore[no-untyped-def]
    target, original, count, sigma, seed, offset, UNIFORM: tl.constexpr, BLOCK: tl.constexpr
):
    block = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    # one Philox call gives four numbers: they go to four neighbouring stretches, so that loads coalesce
    counter = offset + block * BLOCK + lane
    if UNIFORM:
        a, b, c, d = tl.rand4x(seed, counter)
        a, b, c, d = 3.4641016 * (a - 0.5), 3.4641016 * (b - 0.5), 3.4641016 * (c - 0.5), 3.4641016 * (d - 0.5)
    else:
        a, b, c, d = tl.randn4x(seed, counter)
    start = block * (4 * BLOCK) + lane
    at = start
    tl.store(target + at, tl.load(original + at, mask=at < count, other=0.0) + sigma * a, mask=at < count)
    at = start + BLOCK
    tl.store(target + at, tl.load(original + at, mask=at < count, other=0.0) + sigma * b, mask=at < count)
    at = start + 2 * BLOCK
    tl.store(target + at, tl.load(original + at, mask=at < count, other=0.0) + sigma * c, mask=at < count)
    at = start + 3 * BLOCK
    tl.store(target + at, tl.load(original + at, mask=at < count, other=0.0) + sigma * d, mask=at < count)


def perturb(target: Tensor, original: Tensor, sigma: float, seed: int, offset: int, uniform: bool) -> int:
    """Write original + σ·ε into `target` (both dense, same layout); returns the counter after it."""
    count = target.numel()
    blocks = triton.cdiv(count, 4 * BLOCK)
    with torch.cuda.device(target.device):
        _perturb[(blocks,)](target, original, count, sigma, seed, offset, UNIFORM=uniform, BLOCK=BLOCK)
    return int(offset + blocks * BLOCK)


def fits(target: Tensor, original: Tensor) -> bool:
    """Dense tensors of one layout on a CUDA device; anything else takes the plain path."""
    dense = target.is_contiguous() or (target.ndim == 4 and target.is_contiguous(memory_format=torch.channels_last))
    same = target.stride() == original.stride()
    return target.is_cuda and dense and same and target.dtype in (torch.float32, torch.float16, torch.bfloat16)
