"""Bins of confidence: right-closed ((b−1)/B, b/B], with zero in the first bin; sums are in float64.

Equal-mass bins keep ties together: a whole run of equal confidences goes to the bin of its middle rank, so that the
result does not depend on the order of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

EDGE_SNAP = 1e-11
"""A confidence this close above an edge (in units of a bin) counts as on the edge. This undoes the rounding of
exp(log p) in float64, so that a forest's p = 0.2 stays in (2/15, 3/15]. The rounding of 0.2 to float32 (3e-9) is larger
and is taken as data."""


def equal_width(confidence: Tensor, bins: int) -> Tensor:
    """The bin of each confidence, in [0, bins)."""
    scaled = confidence.double() * bins
    return (torch.ceil(scaled - EDGE_SNAP) - 1).clamp_(0, bins - 1).long()


def edges(bins: int) -> Tensor:
    return torch.arange(bins + 1, dtype=torch.float64) / bins


def tie_runs(sorted_values: Tensor, within: float = 0.0) -> tuple[Tensor, Tensor]:
    """(run of each position, start of each run) of sorted values. With `within` > 0, ascending values no further apart
    than that tie."""
    new = torch.ones_like(sorted_values, dtype=torch.bool)
    if within:  # −inf − (−inf) is NaN, which is not > `within`, so equal infinities tie
        new[1:] = sorted_values[1:] - sorted_values[:-1] > within
    else:
        new[1:] = sorted_values[1:] != sorted_values[:-1]
    return torch.cumsum(new, 0) - 1, new.nonzero()[:, 0]


ROUNDING = 8 * float(np.finfo(np.float64).eps)
"""Probabilities that are relatively this close count as equal: the order of a float64 sum changes it by this much."""


def settled(values: NDArray[np.float64], unit: float = 0.0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(values, sorted values), where values that differ only by rounding are made equal.

    Two rows of a forest, (.4, .3, .2, .1) and (.4, .1, .2, .3), are equally confident. Their last bit must not decide
    which bin or block they fall into. `unit` is the least magnitude that rounding is relative to: 1 for log-odds, which
    near 0 are differences of larger numbers.
    """
    ordered = np.sort(values)
    step = np.diff(ordered)
    apart = step > ROUNDING * np.maximum(np.abs(ordered[1:]), unit)
    if not bool(((step > 0) & ~apart).any()):
        return values, ordered
    new = np.concatenate([[True], apart])
    least = ordered[new]
    return least[np.searchsorted(least, values, "right") - 1], least[np.cumsum(new) - 1]


def equal_mass(confidence: Tensor, bins: int, order: Tensor | None = None) -> Tensor:
    """The equal-mass bin of each confidence, in [0, bins). A run of ties is in the bin of its middle rank.

    `order` is a permutation that sorts the confidences, if it is known already.
    """
    values = confidence.double()
    if order is None:
        values, order = torch.sort(values)
    else:
        values = values[order]
    run, start = tie_runs(values)
    end = torch.cat([start[1:], start.new_tensor([len(values)])])
    middle = (start + end).double() / 2  # item i covers [i, i+1) of the ranks
    which = (middle * bins / len(values)).floor().long().clamp_(0, bins - 1)
    index = torch.empty_like(order)
    index[order] = which[run]
    return index


def mass_bins(values: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """(bin of each value, inner edges) of equal-mass bins. Bins that ties leave empty are dropped. An edge is halfway
    between the values on its two sides."""
    present, index = torch.unique(equal_mass(values, bins), return_inverse=True)
    low = torch.full((len(present),), torch.inf, dtype=torch.float64).scatter_reduce_(0, index, values, "amin")
    high = torch.zeros(len(present), dtype=torch.float64).scatter_reduce_(0, index, values, "amax")
    return index, (high[:-1] + low[1:]) / 2


@dataclass(frozen=True)
class BinSums:
    """Weighted sums of count, confidence and correctness in each bin, [B, bins] for B replicates."""

    count: Tensor
    confidence: Tensor
    correct: Tensor

    @property
    def total(self) -> Tensor:
        return self.count.sum(-1, keepdim=True)

    @property
    def mass(self) -> Tensor:
        """The share of the items in each bin."""
        return self.count / self.total

    @property
    def gap(self) -> Tensor:
        """(Σ confidence − Σ correct) / N of each bin; ECE is the sum of the absolute values."""
        return (self.confidence - self.correct) / self.total

    @property
    def mean_confidence(self) -> Tensor:
        return self.confidence / self.count.clamp_min(1e-300)

    @property
    def accuracy(self) -> Tensor:
        return self.correct / self.count.clamp_min(1e-300)


def group_sums(group: Tensor, groups: int, index: Tensor, bins: int, values: Tensor | None = None) -> Tensor:
    """The number of items, or the sum of their values, of each group in each bin, [groups, bins]."""
    weights = None if values is None else values.double()
    return torch.bincount(group * bins + index, weights, minlength=groups * bins).double().view(groups, bins)


def bin_sums(index: Tensor, bins: int, confidence: Tensor, correct: Tensor, weights: Tensor | None = None) -> BinSums:
    """The sums in each bin, under `weights` [B, N] or without weights."""
    if weights is None:
        # a few numbers, for which the CPU is faster than launches on a device
        items = torch.bincount(2 * index + correct, minlength=2 * bins).cpu().view(bins, 2).double()
        sure = torch.bincount(index, confidence.double(), minlength=bins).cpu()
        return BinSums(items.sum(1)[None], sure[None], items[:, 1][None])
    member = torch.nn.functional.one_hot(index, bins).double()
    columns = torch.cat([member, member * confidence.double()[:, None], member * correct.double()[:, None]], 1)
    count, conf, hit = torch.split(weights.double() @ columns, bins, 1)
    return BinSums(count, conf, hit)
