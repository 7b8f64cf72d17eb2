"""Bootstrap replicates → an interval: bias-corrected and accelerated (BCa; Efron 1987); and those in closed form:
the BCa interval of a mean, Newcombe's of an AUROC (2006).

The acceleration comes from the empirical influence of every item, which automatic differentiation of
the metric by its weights gives exactly and at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from calibrant.metrics.table import Panel
from calibrant.types import Estimate

UNMOVED = "every resample gives the same value: no interval"
NEWCOMBE = "Newcombe 2006, method 5"


def bca(value: float, replicates: Tensor, acceleration: float, level: float) -> tuple[float, float]:
    """Ends of the interval; `value` and `replicates` are of the same metric on the same cells."""
    below = float((replicates < value).double().mean() + (replicates == value).double().mean() / 2)
    edge = 0.5 / len(replicates)
    z0 = normal_quantile(min(max(below, edge), 1 - edge))
    ends = [normal_cdf(_corrected(z0, acceleration, tail)) for tail in _tails(level)]
    low, high = torch.quantile(replicates, torch.tensor(ends, dtype=torch.float64)).tolist()
    return low, high


def interval(
    point: Estimate, value: float, replicates: Tensor, acceleration: float, level: float, method: str
) -> Estimate:
    """The point with BCa's ends. `value` and `replicates` are of the cells: what merging changed is put back."""
    assert point.value is not None
    drawn = replicates[torch.isfinite(replicates)]  # a replicate without a single error has no AUROC
    if not len(drawn) or float(drawn.max() - drawn.min()) <= 1e-15 * max(1.0, abs(value)):
        return replace(point, reason=UNMOVED)
    shift = point.value - value
    low, high = (end + shift for end in bca(value, drawn, acceleration, level))
    return replace(point, low=low, high=high, method=method)


def bca_of_mean(value: float, square: float, third: float, level: float) -> tuple[float, float]:
    """The BCa interval of a mean, without replicates: their quantiles by Cornish and Fisher's expansion.

    With Σu² and Σu³ of the influences, the bootstrap of a mean has standard deviation σ = (Σu²)^{1/2} and skewness 6a,
    where a is the acceleration, and its median bias z₀ is a as well, all to second order (Efron 1987, §7). |a| ≤ 1/6,
    whatever the outliers.
    """
    a, sd = 0.0 if square <= 0 else third / (6 * square**1.5), math.sqrt(max(square, 0.0))
    low, high = (value + sd * (w + a * (w * w - 1)) for w in (_corrected(a, a, t) for t in _tails(level)))
    return low, high


def _tails(level: float) -> tuple[float, float]:
    return (1 - level) / 2, (1 + level) / 2


def _corrected(z0: float, a: float, tail: float) -> float:
    """BCa's normal quantile of a tail."""
    z = z0 + normal_quantile(tail)
    return z0 + z / (1 - a * z)


def influence(metric: Callable[[Panel], Tensor], panel: Panel) -> Tensor:
    """d metric / d weight of each item at weights 1, centred: what one more of this item would do."""
    return slope(lambda weights: metric(panel.reweighted(weights)), panel.n)


def slope(value: Callable[[Tensor], Tensor], units: int) -> Tensor:
    """d value / d weight of each unit at weights 1, centred."""
    ones = torch.ones(1, units, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(value(ones).sum(), ones)
    return gradient[0] - gradient[0].mean()


def acceleration(influence: Tensor, group: Tensor | None) -> float:
    """Σu³ / 6(Σu²)^{3/2} over what is resampled."""
    u = summed(influence, group)
    square = float(u.square().sum())
    return 0.0 if square == 0 else float(u.pow(3).sum()) / (6 * square**1.5)


def summed(influence: Tensor, group: Tensor | None) -> Tensor:
    """Of each unit that is resampled: the items, or the sums of their groups."""
    if group is None:
        return influence
    return torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add_(0, group, influence)


def newcombe(auroc: float, errors: int, correct: int, level: float) -> tuple[float, float]:
    """AUROC of few errors (Newcombe 2006, method 5): the range of θ that a score test accepts.

    A bootstrap of a handful of errors has not seen the confident one that moves AUROC most: its interval is too short.
    Newcombe's variance depends on the AUROC θ that is tried, not on the errors that were seen:

        (θ̂ − θ)² = z² θ(1 − θ) / (mn) · [1 + N* (1 − θ)/(2 − θ) + N* θ/(1 + θ)],   N* = (m + n)/2 − 1

    of m errors and n correct answers; the ends of the interval are its two roots.
    """
    z2 = normal_quantile((1 + level) / 2) ** 2
    middle = (errors + correct) / 2 - 1

    def rejected(theta: float) -> bool:
        variance = theta * (1 - theta) / (errors * correct)
        variance *= 1 + middle * (1 - theta) / (2 - theta) + middle * theta / (1 + theta)
        return (auroc - theta) ** 2 > z2 * variance

    return _edge(rejected, 0.0, auroc), _edge(rejected, 1.0, auroc)


def _edge(rejected: Callable[[float], bool], outside: float, inside: float) -> float:
    """Where rejection ends on the way from `outside` to `inside`, by bisection."""
    for _ in range(60):
        middle = (outside + inside) / 2
        outside, inside = (middle, inside) if rejected(middle) else (outside, middle)
    return inside


def design_effect(values: Tensor, group: Tensor) -> float:
    """How many times the variance of a mean exceeds that of independent items, from groups drawn whole."""
    centred = values.double() - values.double().mean()
    items = float(centred.square().sum())
    if items == 0:  # nothing varies: only the number of groups is known
        return len(values) / (int(group.max()) + 1)
    return float(summed(centred, group).square().sum()) / items


def normal_quantile(probability: float) -> float:
    return float(torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)))


def normal_cdf(z: float) -> float:
    return float(torch.special.ndtr(torch.tensor(z, dtype=torch.float64)))
