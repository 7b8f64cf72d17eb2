"""The model behind intervals of calibration errors: cells of items, each with a gap, and their noise.

Every binned calibration error is a function of the gaps δ_c = Σ_{i in c} (confidence_i − correct_i)/N.
Given population gaps, the observed ones scatter around them: correct answers in a cell are binomial,
the share of items that fall into it is multinomial. With groups, the scatter is Gaussian with the
covariance of the groups' own sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from calibrant.functional.binning import group_sums

_TABLE = 96  # hits (or misses) tabulated where a cell expects few of them
_FEW = 12.0  # variance below which a cell's count of hits is drawn from its table, not from a normal


@dataclass(frozen=True)
class Cells:
    """Occupied cells of N items: counts, mean confidence, accuracy, and variance of confidence inside."""

    n: int
    count: Tensor
    mean_confidence: Tensor
    accuracy: Tensor
    spread: Tensor
    smooth: bool = False  # only sums over many cells matter: a normal will do in each
    factor: Tensor | None = None  # [C, C], L with L Lᵀ = covariance of the observed gaps, from groups

    @cached_property
    def mass(self) -> Tensor:
        return self.count / self.n

    @cached_property
    def gap(self) -> Tensor:
        """Mean confidence − accuracy in each cell."""
        return self.mean_confidence - self.accuracy

    @property
    def certain(self) -> bool:
        """Every item was right, or every item wrong: what was observed has no noise to learn from."""
        return bool(self.accuracy.min() == self.accuracy.max()) and float(self.accuracy[0]) in (0.0, 1.0)

    @cached_property
    def sd(self) -> Tensor:
        """Standard error of each gap; accuracy is pulled to the confidence by one item, so it is never 0."""
        if self.factor is not None:
            return self.factor.square().sum(1).sqrt() / self.mass
        q = (self.accuracy * self.count + self.mean_confidence) / (self.count + 1)
        floor = 0.25 / (self.count + 1)  # a cell that was all right may still be wrong once
        return ((q * (1 - q)).clamp_min(0).maximum(floor / (self.count + 1)) / self.count).sqrt()


def cells(
    index: Tensor, confidence: Tensor, correct: Tensor, group: Tensor | None = None, *, smooth: bool = False
) -> Cells:
    """Cells of the items' `index`; empty ones are dropped."""
    every = torch.bincount(index)
    held = every > 0
    which = (torch.cumsum(held, 0) - 1)[index]
    count = every[held].double()
    n, hit, size = len(index), correct.double(), len(count)
    mean = torch.bincount(which, confidence, minlength=size) / count
    accuracy = torch.bincount(which, hit, minlength=size) / count
    spread = torch.bincount(which, (confidence - mean[which]).square(), minlength=size) / count
    factor = None
    if group is not None:
        groups = int(group.max()) + 1
        sizes = torch.bincount(group, minlength=groups).double()
        factor = group_factor(group_sums(group, groups, which, size, confidence - hit), sizes)
    return Cells(n, count.cpu(), mean.cpu(), accuracy.cpu(), spread.cpu(), smooth, factor)


def from_sums(count: Tensor, confidence: Tensor, correct: Tensor, square: Tensor, *, smooth: bool = False) -> Cells:
    """The same from each cell's count and its sums of confidence, correctness and confidence²."""
    keep = count > 0
    n, mean = count[keep], confidence[keep] / count[keep]
    return Cells(int(count.sum()), n, mean, correct[keep] / n, (square[keep] / n - mean * mean).clamp_min(0), smooth)


def group_factor(sums: Tensor, items: Tensor) -> Tensor:
    """L with L Lᵀ = covariance of the gaps, from the groups' sums of confidence − correct [G, C] and sizes [G]."""
    groups = len(items)
    if groups < 2:  # its noise is not known
        return torch.zeros(sums.shape[1], sums.shape[1], dtype=torch.float64)
    influence = group_influence(sums, items)
    covariance = influence.T @ influence * (groups / (groups - 1))
    values, vectors = torch.linalg.eigh(covariance)
    factor: Tensor = vectors * values.clamp_min(0).sqrt()
    return factor


def group_influence(sums: Tensor, items: Tensor) -> Tensor:
    """What each group adds to the gaps δ = Σ_g s_g / Σ_g n_g: (s_g − n_g δ)/N, [G, C]."""
    n = items.sum()
    return (sums - items[:, None] * (sums.sum(0) / n)) / n


@dataclass(frozen=True)
class Noise:
    """Common random numbers [S, C] for every gap that is tried: one uniform and one normal per cell."""

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
    """Gaps cut to what an accuracy in [0, 1] allows."""
    return cells.mean_confidence - (cells.mean_confidence - gap).clamp(0, 1)


def observed_gaps(cells: Cells, gap: Tensor, noise: Noise) -> Tensor:
    """Draws [T, S, C] of the observed δ when the population's gaps are `gap` [T, C]."""
    gap = possible(cells, gap)[:, None]
    if cells.factor is not None:
        return cells.mass * gap + noise.z @ cells.factor.T
    q = cells.mean_confidence - gap
    hits = _hits(cells, q, noise)
    moved = cells.mass.sqrt() * noise.z  # multinomial share of each cell: covariance diag(m) − m mᵀ
    moved -= cells.mass * moved.sum(-1, keepdim=True)
    # in place: fresh pages of memory take longer than the sums
    drawn = hits.neg_().add_(cells.count * cells.mean_confidence).div_(cells.n)
    return drawn.addcmul_(gap, moved, value=1 / math.sqrt(cells.n))


def _hits(cells: Cells, q: Tensor, noise: Noise) -> Tensor:
    """Correct answers per cell [T, S, C], accuracy q [T, 1, C]."""
    variance = cells.count * (q * (1 - q) - cells.spread).clamp_min(0)
    hits = (variance.sqrt() * noise.normal).add_(cells.count * q)
    if cells.smooth:
        return hits
    few = (cells.count * q * (1 - q) < _FEW)[:, 0]
    at, cell = few.nonzero(as_tuple=True)
    if len(at):
        hits[at, :, cell] = _few(cells.count[cell], q[at, 0, cell], noise.u.T[cell])
    return hits


def _few(n: Tensor, q: Tensor, u: Tensor) -> Tensor:
    """Binomial quantiles [P, S] at u [P, S]; tabulated on the rarer of hit and miss."""
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
