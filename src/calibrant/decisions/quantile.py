"""Which score is the quantile of prediction sets: of independent items, or of groups of items that are.

Where items come in groups that are exchangeable (images), and the items of one are not, an item of a group of m counts
1/m, and q is the smallest with (G + 1)(1 − α) of the G groups at or below it: the share of misses in a new group is at
most α on average (conformal risk control, Angelopoulos 2024; one item in each group: the r above). `guarantee` asks for
the smallest q whose mean share of misses passes Hoeffding–Bentkus's test: shares only fall as q grows, so the search
costs nothing (Bates 2021).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from calibrant.decisions.threshold import hoeffding_bentkus_p
from calibrant.functional.binomial import Floats


def place(n: int, coverage: float, guarantee: float | None) -> int:
    """r: which of n scores in rising order is the quantile; more than n if there are too few."""
    if guarantee is None:
        return max(1, int(np.ceil((n + 1) * coverage - 1e-9)))
    from scipy.stats import binom

    return int(binom.ppf(guarantee, n, coverage)) + 1


def needed(coverage: float, guarantee: float | None) -> int:
    """The fewest items that allow the promise."""
    if guarantee is None:
        return int(np.ceil(coverage / (1 - coverage) * (1 - 1e-9)))
    return int(np.ceil(np.log(1 - guarantee) / np.log(coverage) - 1e-9))


def quantile(
    score: Floats, u: Floats, coverage: float, guarantee: float | None, group: NDArray[np.int64] | None = None
) -> tuple[float, float]:
    """(q, u of the item that it came from); infinite where there are too few."""
    if group is not None:
        return _quantile_of_groups(score, u, coverage, guarantee, group)
    r = place(len(score), coverage, guarantee)
    if r > len(score):
        return float("inf"), 1.0
    q = np.partition(score, r - 1)[r - 1]
    tied = np.sort(u[score == q])
    return float(q), float(tied[r - 1 - int((score < q).sum())])


def _quantile_of_groups(
    score: Floats, u: Floats, coverage: float, guarantee: float | None, group: NDArray[np.int64]
) -> tuple[float, float]:
    order = np.lexsort((u, score))
    size = np.bincount(group)
    count = int((size > 0).sum())
    held = np.cumsum(1 / size[group[order]])  # groups, in parts, at this score or below
    if guarantee is None:
        enough = held >= (count + 1) * coverage - 1e-9 * (count + 1)
    else:
        p = hoeffding_bentkus_p(np.maximum(count - held, 0.0), np.full(len(held), count), 1 - coverage)
        enough = p <= 1 - guarantee
    if not enough.any():
        return float("inf"), 1.0
    i = order[int(np.argmax(enough))]
    return float(score[i]), float(u[i])
