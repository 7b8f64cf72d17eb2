"""The statistical model behind intervals of calibration errors: cells of items, the gap of each, and its noise.

Every binned calibration error is a function of the gaps δ_c = Σ_{i in c} (confidence_i − correct_i)/N. The observed
gaps scatter around those of the population: the correct answers in a cell are binomial, and the share of items that
fall into a cell is multinomial. With groups, the scatter is Gaussian with the covariance of the groups' sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from calibrant.functional.binning import group_sums

_TABLE = 96  # hits (or misses) that are tabulated for a cell that expects few of them
_FEW = 12.0  # below this variance, a cell's hits are drawn from the binomial table, not from a normal


@dataclass(frozen=True)
class Cells:
    """The occupied cells of N items: counts, mean confidence, accuracy, and the variance of confidence inside each."""

    n: int
    count: Tensor
    mean_confidence: Tensor
    accuracy: Tensor
    spread: Tensor
    smooth: bool = False  # only sums over many cells matter, so a normal approximation is enough in each
    factor: Tensor | None = None  # [C, C], L with L Lᵀ = covariance of the observed gaps, from groups
    groups: int | None = None  # how many groups the factor comes from

    @cached_property
    def mass(self) -> Tensor:
        return self.count / self.n

    @cached_property
    def gap(self) -> Tensor:
        """Mean confidence − accuracy in each cell."""
        return self.mean_confidence - self.accuracy

    @property
    def certain(self) -> bool:
        """Whether every item was right, or every item wrong, so that the data say nothing about the noise."""
        return bool(self.accuracy.min() == self.accuracy.max()) and float(self.accuracy[0]) in (0.0, 1.0)

    @cached_property
    def sd(self) -> Tensor:
        """Standard error of each gap. One item is added at the cell's confidence, so that it is never 0."""
        if self.factor is not None:
            return self.factor.square().sum(1).sqrt() / self.mass
        q = (self.accuracy * self.count + self.mean_confidence) / (self.count + 1)
        floor = 0.25 / (self.count + 1)  # a cell with no error so far may still have one
        return ((q * (1 - q)).clamp_min(0).maximum(floor / (self.count + 1)) / self.count).sqrt()


def cells(
    index: Tensor, confidence: Tensor, correct: Tensor, group: Tensor | None = None, *, smooth: bool = False
) -> Cells:
    """The occupied cells, given the cell `index` of each item."""
    every = torch.bincount(index)
    held = every > 0
    which = (torch.cumsum(held, 0) - 1)[index]
    count = every[held].double()
    n, hit, size = len(index), correct.double(), len(count)
    mean = torch.bincount(which, confidence, minlength=size) / count
    accuracy = torch.bincount(which, hit, minlength=size) / count
    spread = torch.bincount(which, (confidence - mean[which]).square(), minlength=size) / count
    factor = groups = None
    if group is not None:
        groups = int(group.max()) + 1
        sizes = torch.bincount(group, minlength=groups).double()
        factor = group_factor(group_sums(group, groups, which, size, confidence - hit), sizes)
    return Cells(n, count.cpu(), mean.cpu(), accuracy.cpu(), spread.cpu(), smooth, factor, groups)


def cells_from_sums(
    count: Tensor, confidence: Tensor, correct: Tensor, square: Tensor, *, smooth: bool = False
) -> Cells:
    """The occupied cells, given each cell's count and its sums of confidence, correctness and confidence²."""
    keep = count > 0
    n, mean = count[keep], confidence[keep] / count[keep]
    return Cells(int(count.sum()), n, mean, correct[keep] / n, (square[keep] / n - mean * mean).clamp_min(0), smooth)


def group_factor(sums: Tensor, items: Tensor) -> Tensor:
    """L with L Lᵀ = covariance of the gaps, from the groups' sums of confidence − correct [G, C] and sizes [G]."""
    groups = len(items)
    if groups < 2:  # one group says nothing about its noise
        return torch.zeros(sums.shape[1], sums.shape[1], dtype=torch.float64)
    influence = group_influence(sums, items)
    covariance = influence.T @ influence * (groups / (groups - 1))
    values, vectors = torch.linalg.eigh(covariance)
    factor: Tensor = vectors * values.clamp_min(0).sqrt()
    return factor


def group_influence(sums: Tensor, items: Tensor) -> Tensor:
    """The influence (s_g − n_g δ)/N of each group on the gaps δ = Σ_g s_g / Σ_g n_g, [G, C]."""
    n = items.sum()
    return (sums - items[:, None] * (sums.sum(0) / n)) / n


@dataclass(frozen=True)
class Noise:
    """Random numbers [S, C] that are shared by all gaps that are tried: one uniform and one normal per cell."""

    u: Tensor
    z: Tensor

    @cached_property
    def normal(self) -> Tensor:
        z: Tensor = torch.special.ndtri(self.u)
        return z


def noise(size: int, draws: int, seed: int) -> Noise:
    generator = torch.Generator().manual_seed(seed)
    u = torch.rand(draws, size, dtype=torch.float64, generator=generator).clamp_(1e-12, 1 - 1e-12)
    return Noise(u, torch.randn(draws, size, dtype=torch.float64, generator=generator))


def possible(cells: Cells, gap: Tensor) -> Tensor:
    """The gaps, clipped so that each accuracy stays in [0, 1]."""
    return cells.mean_confidence - (cells.mean_confidence - gap).clamp(0, 1)


def observed_gaps(cells: Cells, gap: Tensor, noise: Noise) -> Tensor:
    """Simulated observed gaps δ [T, S, C] when the population's gaps are `gap` [T, C]."""
    gap = possible(cells, gap)[:, None]
    if cells.factor is not None:
        return cells.mass * gap + noise.z @ cells.factor.T
    q = cells.mean_confidence - gap
    hits = _drawn_hits(cells, q, noise)
    moved = cells.mass.sqrt() * noise.z  # multinomial share of each cell: covariance diag(m) − m mᵀ
    moved -= cells.mass * moved.sum(-1, keepdim=True)
    # in place, because fresh pages of memory take longer than the sums
    drawn = hits.neg_().add_(cells.count * cells.mean_confidence).div_(cells.n)
    return drawn.addcmul_(gap, moved, value=1 / math.sqrt(cells.n))


def _drawn_hits(cells: Cells, q: Tensor, noise: Noise) -> Tensor:
    """Simulated correct answers per cell [T, S, C] at the accuracies q [T, 1, C]."""
    variance = cells.count * (q * (1 - q) - cells.spread).clamp_min(0)
    hits = (variance.sqrt() * noise.normal).add_(cells.count * q)
    if cells.smooth:
        return hits
    few = (cells.count * q * (1 - q) < _FEW)[:, 0]
    at, cell = few.nonzero(as_tuple=True)
    if len(at):
        hits[at, :, cell] = _binomial_quantiles(cells.count[cell], q[at, 0, cell], noise.u.T[cell])
    return hits


def _binomial_quantiles(n: Tensor, q: Tensor, u: Tensor) -> Tensor:
    """Quantiles [P, S] of Binomial(n, q), both [P], at u [P, S]. The table counts the rarer of hits and misses."""
    flip = q > 0.5
    rare = torch.where(flip, 1 - q, q).clamp(0, 1)[:, None]
    k = torch.arange(_TABLE, dtype=torch.float64)
    m = n[:, None]
    ways = torch.lgamma(m + 1) - torch.lgamma(k + 1) - torch.lgamma((m - k).clamp_min(0) + 1)
    log_pmf = ways + torch.special.xlogy(k, rare) + torch.special.xlog1py((m - k).clamp_min(0), -rare)
    pmf = torch.where(k <= m, log_pmf.exp(), 0.0)
    drawn = torch.searchsorted(torch.cumsum(pmf, 1), torch.where(flip[:, None], 1 - u, u)).double()
    drawn = drawn.minimum(m)
    return torch.where(flip[:, None], m - drawn, drawn)
