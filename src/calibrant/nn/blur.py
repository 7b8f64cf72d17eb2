"""Blur (SS Eq. 8): a depth-wise average with k ⊗ kᵀ / ‖k‖₁² that keeps the size of the map, in 1, 2 or 3 dimensions.

The kernel is separable, so each axis is one weighted sum of shifted views. An even kernel looks one further to the
right: (1, 1) averages a point with its right and lower neighbours, as an average pool of size 2 and stride 1 does.
`box` is the paper's own choice, that average pool, by name. (The authors' code pads it so that the map grows by one
each time; ours never changes the size.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from calibrant.errors import InputError

Padding = Literal["replicate", "reflect", "zero"]
PADDINGS: tuple[Padding, ...] = ("replicate", "reflect", "zero")


def kernel_of(kernel: Sequence[float] | str) -> tuple[float, ...]:
    """The taps of one axis, normalised to sum 1; `box` is (1, 1)."""
    if isinstance(kernel, str):
        if kernel != "box":
            raise InputError(f"kernel={kernel!r} is unknown; use 'box' or a sequence of numbers such as (1, 2, 1)")
        kernel = (1.0, 1.0)
    taps = tuple(float(v) for v in kernel)
    total = sum(taps)
    if not taps or not total > 0 or total == float("inf"):
        raise InputError(f"kernel={tuple(kernel)} must be numbers with a positive sum")
    return tuple(v / total for v in taps)


def reach(taps: int) -> tuple[int, int]:
    """How far a kernel of that many taps looks to the left and to the right."""
    return (taps - 1) // 2, taps // 2


def blur(x: Tensor, taps: Sequence[float], padding: Padding = "replicate", axes: int = 2) -> Tensor:
    """Average over the last `axes` axes of [N, C, …]; same size, any order of differentiation."""
    left, right = reach(len(taps))
    if len(taps) == 1:
        return x
    for axis in range(x.ndim - axes, x.ndim):
        n = x.shape[axis]
        if n < len(taps) or (padding == "reflect" and n <= max(left, right)):
            raise InputError(f"a map of size {tuple(x.shape[-axes:])} is smaller than the kernel of {len(taps)} taps")
        x = _along(x, taps, axis, padding)
    return x


def _along(x: Tensor, taps: Sequence[float], axis: int, padding: Padding) -> Tensor:
    """One axis: Σ_i k_i x[p + i − left], the border as `padding` says."""
    n, left = x.shape[axis], reach(len(taps))[0]
    out = x * taps[left]
    for i, weight in enumerate(taps):
        shift = i - left
        if shift == 0 or weight == 0:
            continue
        # the part that has a neighbour, then the border strip
        inside = x.narrow(axis, max(shift, 0), n - abs(shift))
        out.narrow(axis, max(-shift, 0), n - abs(shift)).add_(inside, alpha=weight)
        strip = out.narrow(axis, n - shift, shift) if shift > 0 else out.narrow(axis, 0, -shift)
        if padding == "replicate":
            edge = x.narrow(axis, n - 1 if shift > 0 else 0, 1)
            strip.add_(edge.expand_as(strip), alpha=weight)
        elif padding == "reflect":
            # …, x[n−2] stands behind x[n−1]: the strip reads the map backwards, the edge itself not repeated
            source = x.narrow(axis, n - 1 - shift, shift) if shift > 0 else x.narrow(axis, 1, -shift)
            strip.add_(torch.flip(source, (axis,)), alpha=weight)
    return out
