"""Step functions of a score, one per column, stored end to end: what binning ensembles and Venn–Abers leave behind.

Column c has inner edges `edges[e_c : e_{c+1}]` and one value more than edges: `values[e_c + c : e_{c+1} + c + 1]`.
A score equal to an edge belongs to the step on its left, or to that on its right (`right=True`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """One column: values[i] between edges[i − 1] and edges[i]."""

    edges: Floats
    values: Floats


def compressed(edges: Floats, values: Floats) -> Step:
    """The same function without the edges across which nothing changes."""
    change = values[1:] != values[:-1]
    return Step(edges[change], np.concatenate([values[:1], values[1:][change]]))


def packed(steps: Sequence[Step]) -> tuple[Tensor, Tensor, Tensor]:
    """(edges, values, offset) as tensors."""
    edges = torch.from_numpy(np.concatenate([s.edges for s in steps]))
    values = torch.from_numpy(np.concatenate([s.values for s in steps]))
    return edges, values, torch.from_numpy(np.cumsum([0, *(len(s.edges) for s in steps)]))


def look_up(score: Tensor, edges: Tensor, values: Tensor, offset: Tensor, *, right: bool) -> Tensor:
    """Value of each score, [..., K] with column c by its own function."""
    out = torch.empty_like(score)
    edges, values = edges.to(score.device), values.to(score.device)
    starts = offset.tolist()
    for c, (i, j) in enumerate(pairwise(starts)):
        column = torch.searchsorted(edges[i:j], score[..., c].contiguous(), right=right)
        out[..., c] = values[i + c : j + c + 1][column]
    return out
