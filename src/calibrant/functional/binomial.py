"""Confidence intervals of a proportion: Wilson (1927) for tables and figures, Clopper–Pearson (1934) for guarantees.

Both accept fractional counts, because the design effect of groups may reduce `n`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def wilson(hits: ArrayLike, n: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """Wilson's interval (low, high) of the proportion hits/n; (0, 1) for n = 0."""
    from scipy.special import ndtri

    k, size = np.asarray(hits, float), np.asarray(n, float)
    z2 = float(ndtri(0.5 + level / 2)) ** 2
    safe = np.maximum(size, 1e-300)
    share = np.where(size > 0, k / safe, 0.5)
    centre = (share * size + z2 / 2) / (size + z2)
    half = np.sqrt(z2 * (share * (1 - share) * size + z2 / 4)) / (size + z2)
    low = np.where(share <= 0, 0.0, centre - half)
    high = np.where(share >= 1, 1.0, centre + half)
    return np.clip(low, 0, 1), np.clip(high, 0, 1)


def clopper_pearson(hits: ArrayLike, n: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """The exact interval (low, high), whose coverage is never below `level`."""
    from scipy.special import betaincinv

    k, size = np.asarray(hits, float), np.asarray(n, float)
    tail = (1 - level) / 2
    with np.errstate(invalid="ignore"):
        low = np.where(k > 0, betaincinv(np.maximum(k, 1e-9), size - k + 1, tail), 0.0)
        high = np.where(k < size, betaincinv(k + 1, np.maximum(size - k, 1e-9), 1 - tail), 1.0)
    return low, high


def exact_lower(hits: ArrayLike, n: ArrayLike, alpha: float) -> Floats:
    """The exact one-sided lower bound, which fails with probability at most `alpha`."""
    return clopper_pearson(hits, n, 1 - 2 * alpha)[0]
