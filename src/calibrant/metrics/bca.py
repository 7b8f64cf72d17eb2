"""Intervals from bootstrap replicates by the bias-corrected and accelerated method (BCa; Efron 1987), and two intervals
in closed form: BCa for a mean, and Newcombe's (2006) for an AUROC.

The acceleration needs the influence of every item. Automatic differentiation of the metric by the items' weights gives
all of them exactly, in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from calibrant.metrics.panel import Panel
from calibrant.types import Estimate

UNMOVED = "every resample gives the same value: no interval"
NEWCOMBE = "Newcombe 2006, method 5"


def bca(value: float, replicates: Tensor, acceleration: float, level: float) -> tuple[float, float]:
    """The two ends of the interval. `value` and `replicates` are of the same metric on the same cells."""
    below = float((replicates < value).double().mean() + (replicates == value).double().mean() / 2)
    edge = 0.5 / len(replicates)
    z0 = normal_quantile(min(max(below, edge), 1 - edge))
    ends = [normal_cdf(_corrected(z0, acceleration, tail)) for tail in _tails(level)]
    low, high = torch.quantile(replicates, torch.tensor(ends, dtype=torch.float64)).tolist()
    return low, high


def interval(
    point: Estimate, value: float, replicates: Tensor, acceleration: float, level: float, method: str
) -> Estimate:
    """The point estimate with its BCa interval. `value` and `replicates` were computed on merged cells, so the ends are
    shifted by what merging changed."""
    assert point.value is not None
    drawn = replicates[torch.isfinite(replicates)]  # a replicate without a single error has no AUROC
    if not len(drawn) or float(drawn.max() - drawn.min()) <= 1e-15 * max(1.0, abs(value)):
        return replace(point, reason=UNMOVED)
    shift = point.value - value
    low, high = (end + shift for end in bca(value, drawn, acceleration, level))
    return replace(point, low=low, high=high, method=method)


def bca_of_mean(value: float, square: float, third: float, level: float) -> tuple[float, float]:
    """The BCa interval of a mean without drawing replicates: their quantiles follow from the Cornish–Fisher expansion.

    `square` and `third` are Σu² and Σu³ of the influences. To second order, the bootstrap of a mean has the standard
    deviation σ = (Σu²)^{1/2}, the skewness 6a, where a is the acceleration, and the median bias z₀ = a (Efron 1987,
    §7). |a| is at most 1/6, whatever the outliers.
    """
    a, sd = 0.0 if square <= 0 else third / (6 * square**1.5), math.sqrt(max(square, 0.0))
    low, high = (value + sd * (w + a * (w * w - 1)) for w in (_corrected(a, a, t) for t in _tails(level)))
    return low, high


def _tails(level: float) -> tuple[float, float]:
    return (1 - level) / 2, (1 + level) / 2


def _corrected(z0: float, a: float, tail: float) -> float:
    """The normal quantile that BCa uses instead of that of the tail itself."""
    z = z0 + normal_quantile(tail)
    return z0 + z / (1 - a * z)


def influence(metric: Callable[[Panel], Tensor], panel: Panel) -> Tensor:
    """The effect of seeing each item once more: d metric / d weight at weights of 1, centred."""
    return slope(lambda weights: metric(panel.reweighted(weights)), panel.n)


def slope(value: Callable[[Tensor], Tensor], units: int) -> Tensor:
    """The effect of drawing each unit once more: d value / d weight at weights of 1, centred."""
    ones = torch.ones(1, units, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(value(ones).sum(), ones)
    return gradient[0] - gradient[0].mean()


def acceleration(influence: Tensor, group: Tensor | None) -> float:
    """BCa's acceleration Σu³ / 6(Σu²)^{3/2}, summed over the resampled units."""
    u = sum_by_unit(influence, group)
    square = float(u.square().sum())
    return 0.0 if square == 0 else float(u.pow(3).sum()) / (6 * square**1.5)


def sum_by_unit(influence: Tensor, group: Tensor | None) -> Tensor:
    """The influence of each resampled unit: of each group, or of each item where there are no groups."""
    if group is None:
        return influence
    return torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add_(0, group, influence)


def newcombe(auroc: float, errors: int, correct: int, level: float) -> tuple[float, float]:
    """The interval of an AUROC from few errors (Newcombe 2006, method 5): the range of θ that a score test accepts.

    With a handful of errors a bootstrap is too short, because the confident error that would move AUROC most may not be
    among them. Newcombe's variance depends on the AUROC θ that is tried, not on the errors that were seen:

        (θ̂ − θ)² = z² θ(1 − θ) / (mn) · [1 + N* (1 − θ)/(2 − θ) + N* θ/(1 + θ)],   N* = (m + n)/2 − 1

    with m errors and n correct answers. The ends of the interval are the two roots.
    """
    z2 = normal_quantile((1 + level) / 2) ** 2
    middle = (errors + correct) / 2 - 1

    def rejected(theta: float) -> bool:
        variance = theta * (1 - theta) / (errors * correct)
        variance *= 1 + middle * (1 - theta) / (2 - theta) + middle * theta / (1 + theta)
        return (auroc - theta) ** 2 > z2 * variance

    return _edge(rejected, 0.0, auroc), _edge(rejected, 1.0, auroc)


def _edge(rejected: Callable[[float], bool], outside: float, inside: float) -> float:
    """The point between `outside` and `inside` where rejection ends, by bisection."""
    for _ in range(60):
        middle = (outside + inside) / 2
        outside, inside = (middle, inside) if rejected(middle) else (outside, middle)
    return inside


def design_effect(values: Tensor, group: Tensor) -> float:
    """How many times larger the variance of a mean is when groups are drawn whole than when items are drawn."""
    x = values.double()
    square = float((x - x.mean()).square().sum())
    return variance_inflation(sum_by_unit(x, group), torch.bincount(group).double(), square)


def variance_inflation(sums: Tensor, sizes: Tensor, square: float) -> float:
    """The design effect from the sum of each unit [U], its items [U], and Σ(x − mean)² over all items."""
    if square == 0:  # nothing varies, so only the number of units is known
        return float(sizes.sum()) / len(sizes)
    return float((sums - sums.sum() / sizes.sum() * sizes).square().sum()) / square


def normal_quantile(probability: float) -> float:
    return float(torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)))


def normal_cdf(z: float) -> float:
    return float(torch.special.ndtr(torch.tensor(z, dtype=torch.float64)))
