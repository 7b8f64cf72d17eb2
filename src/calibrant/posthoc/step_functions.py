"""Step functions and piecewise-linear functions: how maps store them, look up their values and fit them.

Histogram, isotonic, BBQ, Venn–Abers, scaling–binning, spline, IRM and order-preserving maps consist of such functions.
One function has tensors edges[E] and values[E + 1], or knots x[E] and y[E]. The functions of several columns are stored
end to end: column c owns `edges[offset[c] : offset[c + 1]]`, and one more value than edges.

torch.export and ONNX have no `searchsorted`. In an exported graph `place` is a binary search without branches, so the
same map runs everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.functional.binning import settled

Floats = NDArray[np.float64]


def place(score: Tensor, edges: Tensor, offset: Tensor | None = None, *, right: bool = False) -> Tensor:
    """How many edges lie below each score or, with `right`, below it or at it.

    Without `offset` there is one function for all scores. With it, score[..., C] has one function per column.
    """
    if torch.compiler.is_exporting():
        return _binary_search(score, edges, offset, right)
    if offset is None:
        return torch.searchsorted(edges, score.contiguous(), right=right)
    columns = [
        torch.searchsorted(edges[i:j], score[..., c].contiguous(), right=right)
        for c, (i, j) in enumerate(pairwise(offset.tolist()))
    ]
    return torch.stack(columns, -1)


def _binary_search(score: Tensor, edges: Tensor, offset: Tensor | None, right: bool) -> Tensor:
    """`place` in log₂ E rounds of one lookup and one comparison, for all columns at once."""
    rounds = len(edges).bit_length()
    padded = torch.nn.functional.pad(edges, (0, 1 << rounds))  # lookups beyond the last column need some value
    start, stop = (0, len(edges)) if offset is None else (offset[:-1], offset[1:])
    at = torch.zeros_like(score, dtype=torch.long) + start
    for step in (1 << r for r in reversed(range(rounds))):
        last = at + (step - 1)  # the last of the next `step` edges
        below = padded[last] <= score if right else padded[last] < score
        at = torch.where(below & (last < stop), at + step, at)
    return at - start


def in_step(values: Tensor, index: Tensor, offset: Tensor | None = None) -> Tensor:
    """The value of each step that `place` found."""
    if offset is not None:
        index = index + offset[:-1] + torch.arange(len(offset) - 1, device=index.device)
    return values[index]


def step_function(
    score: Tensor, edges: Tensor, values: Tensor, offset: Tensor | None = None, *, right: bool = False
) -> Tensor:
    """values[i] between edges[i − 1] and edges[i]. On an edge it is the left step or, with `right`, the right step."""
    return in_step(values, place(score, edges, offset, right=right), offset)


def interpolate(score: Tensor, x: Tensor, y: Tensor, offset: Tensor | None = None) -> Tensor:
    """Linear between knots and constant outside, as `numpy.interp`. Knots may repeat an x (a block of one score)."""
    gap = x.diff()
    slope = torch.cat([y.diff() / torch.where(gap > 0, gap, torch.ones_like(gap)), y.new_zeros(1)])
    first: int | Tensor = 0
    if offset is not None:
        slope, first = slope.index_fill(0, offset[1:] - 1, 0.0), offset[:-1]
    left = (first + place(score, x, offset, right=True) - 1).clamp_min(first)
    past, y_left = score - x[left], y[left]
    # on a knot, and before the first one, its y itself: between two denormal knots the slope may be infinite
    return torch.where(past > 0, slope[left] * past + y_left, y_left)


def grouped(score: Floats, hit: NDArray[np.bool_], unit: float = 0.0) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Return distinct scores in rising order, with their items and hits. Scores that differ by rounding are one."""
    value, place, size = np.unique(settled(score, unit)[0], return_inverse=True, return_counts=True)
    return value, size, np.asarray(np.bincount(place, hit, minlength=len(value)), dtype=np.float64)


@dataclass(frozen=True)
class Step:
    """A step function in numpy, for fitting: values[i] between edges[i − 1] and edges[i]."""

    edges: Floats
    values: Floats

    def __call__(self, score: Floats, *, right: bool) -> Floats:
        return np.asarray(self.values[np.searchsorted(self.edges, score, side="right" if right else "left")])


def compressed(edges: Floats, values: Floats) -> Step:
    """The same function without the edges across which nothing changes."""
    change = values[1:] != values[:-1]
    return Step(edges[change], np.concatenate([values[:1], values[1:][change]]))


def tensors(*arrays: Floats) -> list[Tensor]:
    return [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]


def end_to_end(columns: Sequence[tuple[Floats, ...]]) -> list[Tensor]:
    """Join the arrays of all columns, and add `offset`, which says where the first array of each column begins."""
    joined = tensors(*(np.concatenate(parts) for parts in zip(*columns, strict=True)))
    return [*joined, torch.from_numpy(np.cumsum([0, *(len(c[0]) for c in columns)]))]


def packed(steps: Sequence[Step]) -> list[Tensor]:
    """[edges, values, offset] for one step function per column."""
    return end_to_end([(s.edges, s.values) for s in steps])
