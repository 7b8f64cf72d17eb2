"""Intervals of calibration errors by inverting a test: debiased, and valid at the boundary 0.

A plain bootstrap of ECE adds noise to noise: when the model is calibrated, it covers 0% of the time. A test inversion
asks instead which population errors would make the observed error unsurprising. The statistic is simulated
(`calibration_cells.observed_gaps`, always with the same random numbers) along a line of population gaps
fixed + t · direction, t ≥ 0. The interval is the range of the population's error over those t at which the observed
statistic lies between the 2.5% and 97.5% quantiles of the simulation.

The shape of the gaps is uncertain too, and it matters, because noise adds most to Σ|δ| where the true gaps are 0. So
the lower end is found on a *concentrated* line (gaps are shrunk to 0 where noise explains them) and the upper end on a
*spread* line (no gap is below its standard error). Each choice makes the interval wider rather than narrower.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.functional.binomial import clopper_pearson
from calibrant.metrics.bca import normal_quantile
from calibrant.metrics.calibration import ECE, ECE_MASS, ECE_MAX, KS, GapError, Side
from calibrant.metrics.calibration_cells import Cells, Noise, noise, observed_gaps, possible
from calibrant.metrics.conventions import Resampling

Array = np.ndarray[Any, np.dtype[np.float64]]

# fmt: off
GRID = torch.tensor(
    (0, 0.08, 0.16, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95, 1,
     1.05, 1.15, 1.3, 1.5, 1.75, 2, 2.4, 3, 4, 6, 10, 50), dtype=torch.float64,
)
# fmt: on
"""Values of t at which the statistic is simulated; quantiles in between are interpolated."""


@dataclass(frozen=True)
class Line:
    """The population gaps fixed + t · direction for each t of GRID, and simulated observations at each."""

    gap: Tensor  # [T, C]
    drawn: Tensor  # [T, S, C]


def concentrated(cells: Cells) -> Tensor:
    """A direction with few gaps: the shrunk ones, or the observed ones if noise explains all of them."""
    shape = shrunk(cells)
    return shape if bool(shape.abs().any()) else cells.gap


def shrunk(cells: Cells) -> Tensor:
    """Gaps without the part that noise explains: g · (1 − sd²/g²)₊ (non-negative garrotte)."""
    g = cells.gap
    return g * (1 - (cells.sd / g.abs().clamp_min(1e-300)).square()).clamp_min(0)


def spread(cells: Cells) -> Tensor:
    """Gaps with their standard errors added in quadrature, so that none is 0."""
    sign = torch.where(cells.gap < 0, -1.0, 1.0).double()
    return sign * (cells.gap.square() + cells.sd.square()).sqrt()


def drift(cells: Cells) -> Tensor:
    """A direction for KS: gaps of one sign, p(1 − p), as a wrong temperature causes them, scaled to the observed walk.

    As the walk rises from 2 to 6 standard errors, the direction turns into the observed gaps.
    """
    shape = cells.mean_confidence * (1 - cells.mean_confidence) + 1e-12
    walk = torch.cumsum(cells.mass * cells.gap, -1)
    size = walk.abs().max() / torch.cumsum(cells.mass * shape, -1).abs().max()
    q = (cells.accuracy * cells.count + cells.mean_confidence) / (cells.count + 1)
    error = ((cells.mass * (q * (1 - q)).clamp_min(0)).sum() / cells.n).sqrt()
    clear = ((walk.abs().max() / error.clamp_min(1e-300) - 2) / 4).clamp(0, 1)  # error = 0 if all are certain, right
    return clear * cells.gap + (1 - clear) * shape * size * torch.sign(walk[walk.abs().argmax()])


def line(cells: Cells, side: Side, end: Literal["low", "high"], random: Noise) -> Line:
    shape = drift(cells) if side == "walk" else concentrated(cells) if end == "low" else spread(cells)
    fixed = torch.zeros_like(shape)
    if side in ("over", "under"):
        sign = 1.0 if side == "over" else -1.0
        signed = sign * cells.gap
        # Gaps of the other sign stay fixed. For the lower end they are 0 unless they are clearly real, so that noise
        # explains as much as it can. For the upper end they are as observed, so that noise explains little.
        if end == "low":
            fixed = torch.where(signed < -2.5 * cells.sd, cells.gap, 0.0)
            shape = torch.where(sign * shape > 0, shape, 0.0)
        else:
            moving = (signed > 0) | (signed == signed.max())
            fixed = torch.where(moving, 0.0, cells.gap)
            shape = torch.where(moving, sign * shape.abs(), 0.0)
    gap = possible(cells, fixed + GRID[:, None] * shape)
    return Line(gap, observed_gaps(cells, gap, random))


def surely_largest(cells: Cells, level: float) -> float:
    """The lower end for the largest gap: the best of the bins' exact bounds (Clopper–Pearson), valid for all at once.

    A simulated maximum would be dominated by bins that hold one or two items and say nothing.
    """
    tail = (1 - level) / 2 / len(cells.count)
    if cells.factor is not None:
        bound = cells.gap.abs() - normal_quantile(1 - tail) * cells.sd
        return max(0.0, float(bound.max()))
    least, most = clopper_pearson((cells.count * cells.accuracy).round(), cells.count, 1 - 2 * tail)
    conf = cells.mean_confidence.numpy()
    return max(0.0, float(np.maximum(conf - most, least - conf).max()))


def interval(error: GapError, cells: Cells, low: Line, high: Line, level: float) -> tuple[float, float]:
    """(low, high) of the population's error. It contains 0 when t = 0 is accepted."""
    tail = (1 - level) / 2
    seen = float(error.of(cells.mass * cells.gap, cells))
    top = quantiles(error.of(low.drawn, cells), 1 - tail)
    bottom = quantiles(error.of(high.drawn, cells), tail)
    lower = error.of(low.gap * cells.mass, cells)
    upper = error.of(high.gap * cells.mass, cells)
    least = 0.0 if top[0] >= seen else crossing(top, lower, seen)
    if error is ECE_MAX:
        least = surely_largest(cells, level)
    # With a smaller error than calibrated items would show, no t is accepted. The interval then ends at what was seen,
    # because an interval of 0 alone would claim too much.
    most = max(least, seen if bottom[0] > seen else crossing(bottom, upper, seen))
    if error is KS and bottom.max() <= seen:  # accuracies end at 0 and 1, so no walk on the line is large enough
        last = int(upper.argmax())
        most = max(most, min(1.0, float(upper[last]) + seen - float(bottom[last])))
    if error in (ECE, ECE_MASS, KS) and cells.certain:
        return all_alike(cells, seen, tail, least, most)
    return least, most


def all_alike(cells: Cells, seen: float, tail: float, least: float, most: float) -> tuple[float, float]:
    """The interval where every item was right, or every item wrong; never narrower than what the lines gave.

    The lines end at an accuracy of 1 (or 0), where the simulation has no noise, so their interval may shrink to a
    point. Two things stay unknown: the rate of misses too rare to be seen in n items or groups, at most `rare` by the
    exact binomial bound 1 − tail^(1/n), and the mean confidence.
    """
    if cells.factor is None:
        mean = (cells.mass * cells.mean_confidence).sum()
        variance = (cells.mass * (cells.spread + (cells.mean_confidence - mean).square())).sum() / cells.n
    else:  # of the sum of all gaps, in which only the confidences vary
        variance = cells.factor.sum(0).square().sum()
    error = normal_quantile(1 - tail) * math.sqrt(float(variance))
    rare = 1 - tail ** (1 / (cells.groups or cells.n))
    return min(least, max(0.0, seen - rare - error)), max(most, min(1.0, max(seen, rare - seen) + error))


def quantiles(drawn: Tensor, share: float) -> Array:
    """The quantile of each row of draws [T, S]; NumPy is ten times as fast as torch here."""
    return np.asarray(np.quantile(drawn.numpy(), share, axis=-1))


def crossing(quantile: Array, value: Tensor, seen: float) -> float:
    """The population's value at which the quantile, which rises with it, reaches the observed value."""
    above = np.flatnonzero(quantile > seen)
    if not len(above) or above[0] == 0:
        return float(value[0 if len(above) else -1])
    ends = slice(above[0] - 1, above[0] + 1)
    return float(np.interp(seen, quantile[ends], value[ends].numpy()))


def invert(c: Cells, errors: Iterable[GapError], resampling: Resampling) -> dict[GapError, tuple[float, float]]:
    """The interval of each error, from the gaps of these cells."""
    random = noise(len(c.count), resampling.replicates, resampling.seed)
    lines: dict[Side, tuple[Line, Line]] = {}
    out = {}
    for error in errors:
        side = error.side
        if side not in lines:
            low = line(c, side, "low", random)
            lines[side] = (low, low if side == "walk" else line(c, side, "high", random))
        out[error] = interval(error, c, *lines[side], resampling.level)
    return out


def calibration_test(bins: Cells, resampling: Resampling) -> dict[str, Any]:
    """Is the model calibrated at all? Consistency resampling (Bröcker & Smith 2007; Vaicenavicius 2019).

    If the confidences are right, the answers are draws from them. So the correct answers of each bin are simulated from
    its confidences, and ECE is computed again. p is the share of simulations with an ECE at least as large as the
    observed one. The observed one counts as a simulation, so that p is never 0. With groups the answers are dependent,
    so the simulation is Gaussian with the covariance of the groups' sums.
    """
    observed = float((bins.mass * bins.gap).abs().sum())
    if bins.factor is not None and not bool(bins.factor.any()):
        return {
            "statistic": "ece",
            "value": observed,
            "p": None,
            "reason": "one group, or all alike: their noise is not known",
        }
    random = noise(len(bins.count), resampling.replicates, resampling.seed + 1)
    none = torch.zeros(1, len(bins.count), dtype=torch.float64)
    simulated = observed_gaps(bins, none, random)[0].abs().sum(-1)
    exceed = int((simulated >= observed * (1 - 1e-12)).sum())
    return {
        "statistic": "ece",
        "value": observed,
        "expected_if_calibrated": float(simulated.mean()),
        "p": (exceed + 1) / (len(simulated) + 1),
        "tests": (
            "the confidences are right, by ECE: small p means miscalibrated; "
            "large p means that these items cannot show it"
        ),
    }
