"""How many successive frames an interval must draw together: the block length from the frames' autocorrelation
(Politis & White 2004, with Patton's correction of 2009), and by how much short or few blocks must be widened.

    b = (2 G² / D)^(1/3) · N^(1/3),   G = Σ_k λ(k/M) |k| R(k),   D = 4/3 · S²,   S = Σ_k λ(k/M) R(k)

λ is the flat-top window, and M is twice the lag after which correlations are no longer significant. This b makes the
error of the *variance* smallest. For an interval it is worse to miss variance with short blocks than to have few long
blocks, because Student's t corrects for few. So blocks are `LONGER` times as long, and at least `FEWEST` of them
remain. Blocks of b frames see S − G/b of the variance S (Künsch 1989); `widening` corrects for the rest.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from calibrant.metrics.bca import normal_quantile

LONGER = 3.0
FEWEST = 5
MOST_MISSED = 0.6
"""The largest share of the variance that `widening` assumes to be missed, where blocks are far too short."""


def block_length(series: Tensor) -> int:
    """Frames to draw together, given what each frame adds to a metric [F]; the longest for several series [S, F]."""
    rows = _rows(series)
    frames = rows.shape[1]
    longest = max(1, frames // FEWEST)
    return min(longest, max(math.ceil(LONGER * _politis_white(row)) for row in rows))


def widening(series: Tensor, block: int) -> float:
    """The factor √(S / (S − G/b)) by which an interval over blocks of b frames is too short; the largest of several
    series."""
    shares = [max(0.0, g / (block * s)) for g, s in map(_correlated, _rows(series)) if s > 0]
    return 1 / math.sqrt(1 - min(MOST_MISSED, max(shares, default=0.0)))


def _rows(series: Tensor) -> Tensor:
    return (series[None] if series.ndim == 1 else series).double()


def _politis_white(x: Tensor) -> float:
    g, spectrum = _correlated(x)
    if g <= 0 or spectrum <= 0:  # neighbours are negatively correlated, or not at all
        return 0.5
    return float((2 * g * g / (4 / 3 * spectrum * spectrum)) ** (1 / 3) * len(x) ** (1 / 3))


def _correlated(x: Tensor) -> tuple[float, float]:
    """(G, S) of a series: Σ |k| R(k) and Σ R(k) over positive and negative lags; (0, variance) where no lag is
    significant."""
    n = len(x)
    x = x - x.mean()
    variance = float(x.square().mean())
    if n < 4 or variance <= 1e-300:
        return 0.0, variance
    most = min(n - 1, math.ceil(math.sqrt(n)) + max(5, math.ceil(math.log10(n))))
    r = torch.stack([(x[: n - k] * x[k:]).sum() / n for k in range(most + 1)])
    width = 2 * _last_significant(r / variance, n, most)
    if not width:
        return 0.0, variance
    lags = torch.arange(1, min(width, most) + 1, dtype=torch.float64)
    used = (2 * (1 - lags / width)).clamp(0, 1) * r[1 : len(lags) + 1]  # 1 up to half the width, then down to 0
    return 2 * float((lags * used).sum()), variance + 2 * float(used.sum())


def _last_significant(rho: Tensor, n: int, most: int) -> int:
    """The lag after which `run` correlations in a row are within 2 √(log₁₀ n / n); 0 if the first ones are."""
    bound, run = 2 * math.sqrt(math.log10(n) / n), max(5, math.ceil(math.log10(n)))
    small = (rho.abs() < bound).tolist()
    for m in range(most - run + 1):
        if all(small[m + 1 : m + 1 + run]):
            return m
    return max((k for k in range(1, most + 1) if not small[k]), default=0)


def student_widening(count: int, level: float) -> float:
    """Student's quantile over the normal one: the factor by which a normal interval over `count` units is too short."""
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, count - 1)) / normal_quantile((1 + level) / 2)
