"""How many successive frames an interval must draw together: a block length from the autocorrelation (Politis & White
2004, with Patton's correction of 2009), what a block still misses, and what few blocks cost.

    b = (2 G² / D)^(1/3) · N^(1/3),   G = Σ_k λ(k/M) |k| R(k),   D = 4/3 · S²,   S = Σ_k λ(k/M) R(k)

λ is the flat-top window, M twice the lag after which correlations are no longer significant. That b makes the error of
the *variance* smallest; an interval suffers more from the variance that a short block misses than from the noise of few
long ones, for which Student's t pays. So blocks are `LONGER` times as long, and at least `AT_LEAST` of them remain.
Blocks of b frames see S − G/b of the variance S (Künsch 1989): `missed` is what to widen by.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from calibrant.metrics.bca import normal_quantile

LONGER = 3.0
AT_LEAST = 5
MOST_MISSED = 0.6
"""Of the variance: where blocks are far too short, no more is guessed than this."""


def block_length(series: Tensor) -> int:
    """Frames to draw together, from what each frame adds to a metric [F]; of several series [S, F], the longest."""
    rows = _rows(series)
    frames = rows.shape[1]
    longest = max(1, frames // AT_LEAST)
    return min(longest, max(math.ceil(LONGER * _politis_white(row)) for row in rows))


def missed(series: Tensor, block: int) -> float:
    """√(S / (S − G/b)): by how much an interval over blocks of b frames is too short; of several series, the most."""
    shares = [max(0.0, g / (block * s)) for g, s in map(_correlated, _rows(series)) if s > 0]
    return 1 / math.sqrt(1 - min(MOST_MISSED, max(shares, default=0.0)))


def _rows(series: Tensor) -> Tensor:
    return (series[None] if series.ndim == 1 else series).double()


def _politis_white(x: Tensor) -> float:
    g, spectrum = _correlated(x)
    if g <= 0 or spectrum <= 0:  # neighbours repel each other, or have nothing to do with one another
        return 0.5
    return float((2 * g * g / (4 / 3 * spectrum * spectrum)) ** (1 / 3) * len(x) ** (1 / 3))


def _correlated(x: Tensor) -> tuple[float, float]:
    """(G, S) of a series: Σ |k| R(k) and Σ R(k) over both sides; (0, variance) where no lag is significant."""
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
    used = (2 * (1 - lags / width)).clamp(0, 1) * r[1 : len(lags) + 1]  # flat at 1 up to the half, then down to 0
    return 2 * float((lags * used).sum()), variance + 2 * float(used.sum())


def _last_significant(rho: Tensor, n: int, most: int) -> int:
    """The lag after which `run` correlations in a row are within 2 √(log₁₀ n / n); 0 if even the first are."""
    bound, run = 2 * math.sqrt(math.log10(n) / n), max(5, math.ceil(math.log10(n)))
    small = (rho.abs() < bound).tolist()
    for m in range(most - run + 1):
        if all(small[m + 1 : m + 1 + run]):
            return m
    return max((k for k in range(1, most + 1) if not small[k]), default=0)


def few_blocks(count: int, level: float) -> float:
    """By how much Student's quantile exceeds the normal's: what an interval over `count` units is too short by."""
    from scipy.stats import t

    return float(t.ppf((1 + level) / 2, count - 1)) / normal_quantile((1 + level) / 2)
