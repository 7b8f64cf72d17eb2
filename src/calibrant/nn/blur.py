"""Blur (SS Eq. 8): a depth-wise average with k ⊗ kᵀ / ‖k‖₁² that keeps the size of the map, in 1, 2 or 3 dimensions.

The kernel is separable, so each axis is a weighted sum of shifted views. An even kernel reaches one point further to
the right: (1, 1) averages a point with its right and lower neighbours, like an average pool of size 2 and stride 1.
`box` is the name of this average pool, the paper's own choice. (The authors' code pads it so that the map grows by one
each time; ours never changes the size.)

The blur is linear: its derivative is its transpose, whose derivative is the blur again. So autograd stores no map for
it, and derivatives of every order exist.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.errors import InputError

Padding = Literal["replicate", "reflect", "zero"]
PADDINGS: tuple[Padding, ...] = ("replicate", "reflect", "zero")
ZERO = 1e-12
"""A sum of taps that is smaller, relative to their sizes, is a rounding error: 0.1 + 0.2 − 0.3 is not 0 in floats."""


class Taps(tuple[float, ...]):
    """A tuple that counts as one argument: torch's vmap of a forward derivative unpacks plain tuples and miscounts."""


def kernel_of(kernel: Sequence[float] | str) -> tuple[float, ...]:
    """Return the taps of one axis, normalised to sum 1; `box` is (1, 1)."""
    if isinstance(kernel, str):
        if kernel != "box":
            raise InputError(f"kernel={kernel!r} is unknown; use 'box' or a sequence of numbers such as (1, 2, 1)")
        kernel = (1.0, 1.0)
    try:
        taps = tuple(float(v) for v in kernel)
    except (TypeError, ValueError) as error:
        said = " ".join(repr(kernel).split())
        raise InputError(f"kernel={said} must be a sequence of numbers such as (1, 2, 1), or 'box'") from error
    total = sum(taps)
    if not total > ZERO * sum(map(abs, taps)) or not math.isfinite(total):  # also refuses a kernel without taps
        raise InputError(f"kernel={tuple(kernel)} must be numbers with a positive sum, such as (1, 2, 1)")
    return tuple(v / total for v in taps)


def reach(taps: int) -> tuple[int, int]:
    """Return how many points a kernel of that many taps reaches to the left and to the right."""
    return (taps - 1) // 2, taps // 2


def check_map(shape: Sequence[int], taps: int, axes: int) -> None:
    """Refuse anything but a map with channels and `axes` spatial axes, each at least as long as the kernel."""
    if len(shape) <= axes:
        raise InputError(f"a blur over {axes} axes needs a map [N, C, …], not a tensor of shape {tuple(shape)}")
    if min(shape[-axes:]) < taps:
        size = "×".join(str(n) for n in shape[-axes:])
        raise InputError(f"a map of {size} is smaller than the kernel of {taps} taps; use a shorter kernel")


def check_values(x: Tensor) -> None:
    """Refuse whole numbers, which cannot be averaged: an image of bytes must be converted to floats first."""
    if not x.dtype.is_floating_point and not x.dtype.is_complex:
        raise InputError(f"a map of {x.dtype} cannot be averaged; give floats, such as x.float()")


def blur(x: Tensor, taps: Sequence[float], padding: Padding = "replicate", axes: int = 2) -> Tensor:
    """Average over the last `axes` axes of [N, C, …]. The size stays; derivatives of every order exist."""
    check_map(x.shape, len(taps), axes)
    check_values(x)
    return blurred(x, taps, padding, axes)


def blurred(x: Tensor, taps: Sequence[float], padding: Padding, axes: int, *, transposed: bool = False) -> Tensor:
    """Blur a map that was checked already, or apply the transpose of the blur."""
    if len(taps) == 1:
        return x
    if torch.compiler.is_compiling():  # Dynamo takes no Function with a jvp, and differentiates by itself
        return _Blur.forward(x, tuple(taps), padding, axes, transposed)
    out: Tensor = _Blur.apply(x, Taps(taps), padding, axes, transposed)  # type: ignore[no-untyped-call]
    return out


class _Blur(torch.autograd.Function):
    """The blur and, with `transposed`, its transpose. Each is the derivative of the other."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, taps: tuple[float, ...], padding: Padding, axes: int, transposed: bool) -> Tensor:
        for axis in range(x.ndim - axes, x.ndim):
            x = _along(x, taps, axis, padding, transposed)
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, *ctx.settings = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        taps, padding, axes, transposed = ctx.settings
        return blurred(gradient, taps, padding, axes, transposed=not transposed), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        taps, padding, axes, transposed = ctx.settings
        return blurred(tangent, taps, padding, axes, transposed=transposed)


def _pieces(x: Tensor, axis: int, shift: int, padding: Padding) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return four views for a shift along an axis: the points that have a neighbour, their neighbours, the border strip
    without neighbours, and its replacement: the edge (replicate), or the points next to it, to be reversed
    (reflect)."""
    n, size = x.shape[axis], abs(shift)
    here, there = x.narrow(axis, max(-shift, 0), n - size), x.narrow(axis, max(shift, 0), n - size)
    strip = x.narrow(axis, n - size if shift > 0 else 0, size)
    if padding == "replicate":
        return here, there, strip, x.narrow(axis, n - 1 if shift > 0 else 0, 1)
    return here, there, strip, x.narrow(axis, n - 1 - size if shift > 0 else 1, size)


def _along(x: Tensor, taps: Sequence[float], axis: int, padding: Padding, transposed: bool) -> Tensor:
    """Blur along one axis: Σ_i k_i x[p + i − left], with padding at the border. The transpose adds to each point what
    it contributed to its neighbours."""
    left = reach(len(taps))[0]
    out = x * taps[left]
    near, far = (1, 0) if transposed else (0, 1)
    for i, weight in enumerate(taps):
        if i == left or weight == 0:
            continue
        into, of = (_pieces(t, axis, i - left, padding) for t in (out, x))
        into[near].add_(of[far], alpha=weight)
        border = of[2 + far]
        if padding == "reflect":
            border = torch.flip(border, (axis,))
        elif transposed:
            border = border.sum(axis, keepdim=True)
        if padding != "zero":
            into[2 + near].add_(border, alpha=weight)
    return out
