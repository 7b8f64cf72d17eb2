"""Ordered cells: how many good and bad items each stretch of neighbouring scores holds, and the bootstrap of them.

A ranking sees an item only through its cell, so a replicate of N items is a multinomial draw of cells, whatever N is.
Runs of ties are cells; neighbouring ones are merged until at most `CELLS` are left. A metric of a replicate then moves
by what a tie inside a cell of N/CELLS items is worth, and the interval is of deviations from the same metric on the
same cells, so that the merge cancels. Memory, streams and the two sets of an OOD test share this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from calibrant.metrics.bca import bca
from calibrant.metrics.conventions import Resampling
from calibrant.types import Estimate

CELLS = 1024
"""Cells that a replicate sees."""
UNMOVED = "every resample gives the same value: no interval"

_HELD = 1 << 17  # numbers of a chunk of replicates: they stay in the cache
_PLAIN = 4  # items in a cell

Ranked = Callable[[Tensor, Tensor], Mapping[str, Tensor]]
"""(good [B, C], bad [B, C]), the highest scores first → each metric's values [B], in 0…1."""


def merge(*columns: Tensor, cells: int = CELLS) -> tuple[Tensor, ...]:
    """Columns [R] of ordered runs, summed into at most `cells` cells of about N/cells items; (good, bad) come first."""
    size = columns[0] + columns[1]
    if len(size) <= cells:
        return columns
    slot = ((torch.cumsum(size, 0) - size) * cells / size.sum()).floor().long()
    cell = torch.unique_consecutive(slot, return_inverse=True)[1]
    held = int(cell[-1]) + 1
    return tuple(c.new_zeros(held).index_add_(0, cell, c) for c in columns)


def draws(counts: Tensor, replicates: int, generator: np.random.Generator) -> Iterator[Tensor]:
    """How many items each cell [C] gets when all are drawn again with replacement: [B, C], chunk by chunk."""
    n, c = int(counts.sum()), len(counts)
    few = n <= _PLAIN * c  # drawing items is then faster than drawing multinomials
    cell = np.repeat(np.arange(c), counts.numpy().astype(np.int64)) if few else np.empty(0, np.int64)
    share = (counts / n).numpy()
    step = max(1, _HELD // c)
    for start in range(0, replicates, step):
        rows = min(step, replicates - start)
        if few:
            at = cell[generator.integers(n, size=(rows, n))] + c * np.arange(rows)[:, None]
            drawn = np.bincount(at.ravel(), minlength=rows * c).reshape(rows, c)
        else:
            drawn = generator.multinomial(n, share, size=rows)
        yield torch.from_numpy(drawn).double()


def resampled(good: Tensor, bad: Tensor, resampling: Resampling, *, apart: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Replicates of (good [C], bad [C]), in chunks [B, C]; `apart`: each of the two is a sample of its own."""
    generator = np.random.default_rng(resampling.seed % 2**64)
    if apart:
        yield from zip(*(draws(c, resampling.replicates, generator) for c in (good, bad)), strict=True)
        return
    both = torch.cat([good, bad])
    held = both > 0
    for drawn_cells in draws(both[held], resampling.replicates, generator):
        full = drawn_cells.new_zeros(len(drawn_cells), len(both))
        full[:, held] = drawn_cells
        yield full[:, : len(good)], full[:, len(good) :]


def with_bca(
    points: Mapping[str, Estimate],
    compute: Ranked,
    good: Tensor,
    bad: Tensor,
    resampling: Resampling,
    *,
    method: str,
    apart: bool = False,
) -> dict[str, Estimate]:
    """BCa intervals of functions of the counts; the acceleration is that of the items' influences."""
    good, bad = (c.cpu() for c in merge(good.double(), bad.double()))
    chunks = [compute(g, b) for g, b in resampled(good, bad, resampling, apart=apart)]
    slopes = _influences(compute, (good, bad), apart)
    out = {}
    for name, point in points.items():
        assert point.value is not None
        value, accelerated = slopes[name]
        replicates = torch.cat([chunk[name] for chunk in chunks])
        replicates = replicates[torch.isfinite(replicates)]  # a replicate without a single error has no AUROC
        if float(replicates.max() - replicates.min()) <= 1e-15 * max(1.0, abs(value)):
            out[name] = replace(point, reason=UNMOVED)
            continue
        shift = point.value - value  # what merging changed
        low, high = (end + shift for end in bca(value, replicates, accelerated, resampling.level))
        out[name] = replace(point, low=max(low, 0.0), high=min(high, 1.0), method=method)
    return out


def _influences(compute: Ranked, held: Sequence[Tensor], apart: bool) -> dict[str, tuple[float, float]]:
    """Each metric's (value on the cells, acceleration Σu³ / 6(Σu²)^{3/2} of the items' influences u)."""
    weights = [c[None].clone().requires_grad_(True) for c in held]
    out = {}
    with torch.enable_grad():
        for name, value in compute(weights[0], weights[1]).items():
            # the quantile in fpr95 has no slope in the good items
            found = torch.autograd.grad(
                value.sum(), weights, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            slopes = [s[0] for s in found]
            samples = list(zip(held, slopes, strict=True)) if apart else [(torch.cat(list(held)), torch.cat(slopes))]
            third = square = 0.0
            for count, slope in samples:
                u = slope - (slope * count).sum() / count.sum()
                square += float((count * u.square()).sum())
                third += float((count * u.pow(3)).sum())
            out[name] = (float(value.detach()), 0.0 if square == 0 else third / (6 * square**1.5))
    return out
