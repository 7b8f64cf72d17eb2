"""Divide a map among the lanes of a GPU, and read and write the part of a lane (Triton).

A lane owns U neighbouring columns of a block of rows: of V channels (channels-last) or of one channel (NCHW). Columns
are tuples of registers, so that a blur along W is arithmetic among them. A column is [G, V] or, for NCHW, [G], for the
G lanes of a program.
"""

# Device code only looks like Python: its compiler has no starred tuples, and its values have no types for mypy.
# ruff: noqa: RUF005
# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

REPLICATE, REFLECT, ZERO = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def locate(x, H, W, S, J, groups, down, rows, G: tl.constexpr, V: tl.constexpr, NCHW: tl.constexpr):
    """Return (offset of the lane's map and channel, group of columns, first row). Spare lanes repeat the last one."""
    g = tl.minimum(tl.program_id(0) * G + tl.arange(0, G), groups - 1)
    c = tl.zeros([G], tl.int32)
    if not NCHW:
        g = g[:, None]
        c = g % (S // V)
        g = g // (S // V)
    j = g % J
    first = (g // J) % down * rows
    r = g // J // down
    return r.to(tl.int64) * H * (W * S) + c * V, j, first


@triton.jit
def _fold(i, N, PAD: tl.constexpr):
    """Return the point at index i of the padded axis of N points."""
    if PAD == REFLECT:
        i = tl.abs(i)
        i = tl.minimum(i, 2 * (N - 1) - i)
    return tl.minimum(tl.maximum(i, 0), N - 1)


@triton.jit
def read(
    at, h, j, H, W, S, LO: tl.constexpr, HI: tl.constexpr,
    PAD: tl.constexpr, U: tl.constexpr, V: tl.constexpr, EXACT: tl.constexpr, NCHW: tl.constexpr,
):  # fmt: skip
    """Return the columns jU − LO … jU + U − 1 + HI of row h of the padded map, as a tuple of U + LO + HI."""
    line = at + _fold(h, H, PAD) * (W * S)
    live = (h >= 0) & (h < H)
    columns = ()
    for i in tl.static_range(-LO, U + HI):
        if NCHW and EXACT and i >= 0 and i < U:
            if i == 0:  # read all of a lane's own columns in one wide access
                p = (line + j * U)[:, None] + tl.arange(0, U)[None, :]
                stretch = tl.load(p, mask=live[:, None], other=0.0) if PAD == ZERO else tl.load(p)
                columns = columns + _split(stretch, U)
        else:
            w = j * U + i
            inside = live if EXACT and i >= 0 and i < U else live & (w >= 0) & (w < W)
            p = line + (w if EXACT and i >= 0 and i < U else _fold(w, W, PAD)) * S
            if not NCHW:
                p = p + tl.arange(0, V)[None, :]
            columns = columns + (tl.load(p, mask=inside, other=0.0) if PAD == ZERO else tl.load(p),)
    return columns


@triton.jit
def _split(x, U: tl.constexpr):
    """Split [G, U] into U × [G], in order. This is free, because it stays within a lane."""
    columns = ()
    if U == 1:
        columns = (tl.reshape(x, [x.shape[0]]),)
    else:
        even, odd = tl.split(tl.reshape(x, [x.shape[0], U // 2, 2]))
        evens, odds = _split(even, U // 2), _split(odd, U // 2)
        for i in tl.static_range(U // 2):
            columns = columns + (evens[i], odds[i])
    return columns


@triton.jit
def _join(columns, U: tl.constexpr):
    """Join U × [G] to [G, U]."""
    if U == 1:
        tile = columns[0][:, None]
    else:
        evens, odds = (), ()
        for i in tl.static_range(U // 2):
            evens = evens + (columns[2 * i],)
            odds = odds + (columns[2 * i + 1],)
        both = tl.join(_join(evens, U // 2), _join(odds, U // 2))
        tile = tl.reshape(both, [both.shape[0], U])
    return tile


@triton.jit
def write(at, columns, h, j, H, W, S, U: tl.constexpr, V: tl.constexpr, EXACT: tl.constexpr, NCHW: tl.constexpr):
    """Write a lane's own columns of row h that are within the map."""
    line = at + h * (W * S)
    if NCHW and EXACT:
        tl.store((line + j * U)[:, None] + tl.arange(0, U)[None, :], _join(columns, U), mask=(h < H)[:, None])
    else:
        for i in tl.static_range(U):
            w = j * U + i
            p = line + w * S if NCHW else line + w * S + tl.arange(0, V)[None, :]
            tl.store(p, columns[i], mask=h < H if EXACT else (h < H) & (w < W))
