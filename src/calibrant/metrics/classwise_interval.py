"""The interval of classwise ECE from its (class, bin) cells, by test inversion in closed form.

There are too many cells to simulate, but enough of them for a normal approximation of their sum. In each cell,
E|δ_c + noise| is the mean of a folded normal. At δ = 0 it is corrected to the binomial's mean absolute deviation (de
Moivre), because many cells hold few items. The classes of one item are dependent, since Σ_k (p_k − y_k) = 0. For any
signs s, Var Σ s_k y_k ≤ 2 Σ Var y_k, so the part of the variance that is linear in δ is doubled. At δ = 0 a correlation
of −1/(K−1) between classes adds 1/(K−1) of the variance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from calibrant.functional.scores import Classwise
from calibrant.metrics.bca import normal_quantile
from calibrant.metrics.calibration import folded_mean
from calibrant.metrics.calibration_cells import Cells, possible
from calibrant.metrics.calibration_intervals import GRID, concentrated, crossing
from calibrant.metrics.difference_range import Curve


def classwise_interval(classwise: Classwise, n: int, level: float, design: float = 1.0) -> tuple[float, float]:
    """(low, high) of the population's classwise ECE. `design` is the variance inflation from groups."""
    k = len(classwise.count)
    cells = classwise_cells(classwise, n)
    seen = float((cells.mass * cells.gap).abs().sum())
    z = normal_quantile((1 + level) / 2)
    mean, sd, lower = _moments(cells, concentrated(cells), k, design)
    top = mean + z * sd
    mean, sd, upper = _moments(cells, cells.gap, k, design)  # noise has spread the gaps of so many cells already
    bottom = mean - z * sd
    low = 0.0 if float(top[0]) >= seen else crossing(top.numpy(), lower, seen)
    return low / k, max(low, crossing(bottom.numpy(), upper, seen)) / k


def pivot(classwise: Classwise, n: int, design: float = 1.0) -> Curve:
    """The z-score of the observed classwise ECE at each population value, along the line of the upper end."""
    k = len(classwise.count)
    cells = classwise_cells(classwise, n)
    seen = (cells.mass * cells.gap).abs().sum()
    mean, sd, value = _moments(cells, cells.gap, k, design)
    z = ((seen - mean) / sd.clamp_min(1e-150)).clamp(-1e3, 1e3)
    return Curve(value.cummax(0).values / k, z.cummin(0).values)


def classwise_cells(classwise: Classwise, n: int) -> Cells:
    """The (class, bin) cells that hold items, as a flat list."""
    held = classwise.count > 0
    count = classwise.count[held]
    mean, accuracy = classwise.confidence[held] / count, classwise.positive[held] / count
    return Cells(n, count, mean, accuracy.clamp(0, 1), torch.zeros_like(count))


def linear_and_rest(cells: Cells, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """(expected sign of each cell's gap, linear part of the variance of Σ|δ|, the rest of it), at the shrunk gaps."""
    gap = possible(cells, concentrated(cells))
    q = (cells.mean_confidence - gap).clamp(0, 1)
    delta = cells.mass * gap
    variance = (cells.mass * (q * (1 - q) + gap.square()) / cells.n).clamp_min(1e-300)
    sign = torch.erf(delta / (2 * variance).sqrt())
    linear = (sign.square() * variance).sum()
    total = (delta.square() + variance - folded_mean(delta, variance.sqrt()).square()).sum()
    return sign, linear, (1 + 1 / (k - 1)) * (total - linear).clamp_min(0)


def _moments(cells: Cells, shape: Tensor, k: int, design: float) -> tuple[Tensor, Tensor, Tensor]:
    """(mean, standard deviation) of the observed Σ|δ_c| and the population's Σ|δ_c|, at each t of GRID."""
    means, deviations, values = [], [], []
    for t in GRID:
        gap = possible(cells, t * shape)
        q = (cells.mean_confidence - gap).clamp(0, 1)
        delta = cells.mass * gap
        variance = design * cells.mass * (q * (1 - q) + gap.square()) / cells.n
        sd = variance.clamp_min(1e-300).sqrt()
        folded = folded_mean(delta, sd)
        nearness = torch.exp(-(delta / sd).square() / 2)
        mean = folded + nearness * (math.sqrt(design) * _mad(cells.count, q) / cells.n - math.sqrt(2 / math.pi) * sd)
        linear = (torch.erf(delta / (sd * math.sqrt(2))).square() * variance).sum()
        rest = (delta.square() + variance - folded.square()).sum() - linear
        total = 2 * linear + (1 + 1 / (k - 1)) * rest.clamp_min(0)
        means.append(mean.sum())
        deviations.append(total.sqrt())
        values.append(delta.abs().sum())
    return torch.stack(means), torch.stack(deviations), torch.stack(values)


def _mad(n: Tensor, q: Tensor) -> Tensor:
    """E|Y − nq| for Y ~ Binomial(n, q): 2ν C(n, ν) q^ν (1−q)^{n−ν+1}, ν = ⌊nq⌋ + 1 (de Moivre 1730)."""
    nu = torch.floor(n * q) + 1
    inside = (nu <= n) & (q > 0)
    nu = nu.minimum(n)
    ways = torch.lgamma(n + 1) - torch.lgamma(nu + 1) - torch.lgamma(n - nu + 1)
    log_mad = torch.log(2 * nu) + ways + torch.special.xlogy(nu, q) + torch.special.xlog1py(n - nu + 1, -q)
    return torch.where(inside, log_mad.exp(), 0.0)
