"""Intervals of means and of differences: do two networks differ beyond noise?

    mean d ± t_{n−1} · s_d / √n,   at level 1 − 0.05/m for m comparisons (Bonferroni)

What was measured on the same items or mini-batches is compared by its paired differences d_i = b_i − a_i. Two numbers
that only have intervals of their own are compared as independent ones. Either answer is about these two networks; a
claim about the methods behind them needs several seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from calibrant.errors import InputError
from calibrant.types import Estimate

UNBOUNDED = (-math.inf, math.inf)


def student(
    values: Sequence[float], method: str, within: tuple[float, float] = (0.0, 1.0), comparisons: int = 1
) -> Estimate:
    """Return the mean with its 95% Student interval, clipped to `within`; a single value has no interval.

    Several `comparisons` share the 5% (Bonferroni).
    """
    n, mean = len(values), math.fsum(values) / len(values)
    if n < 2:
        return Estimate(mean)
    from scipy.stats import t

    error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    reach = float(t.ppf(1 - 0.025 / comparisons, n - 1)) * error
    return Estimate(mean, max(mean - reach, within[0]), min(mean + reach, within[1]), method=method)


@dataclass(frozen=True)
class Difference:
    """How much larger one network's number is than another's, with its interval where there is one."""

    estimate: Estimate

    @property
    def beyond(self) -> bool:
        """Whether the difference is beyond noise: its interval does not contain 0."""
        low, high = self.estimate.low, self.estimate.high
        return low is not None and high is not None and not low <= 0 <= high


def paired_difference(a: Tensor, b: Tensor, comparisons: int = 1) -> Difference:
    """Return the mean of b − a, item by item; a single item has no interval."""
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(
            f"{tuple(a.shape)} and {tuple(b.shape)} are not the same items; pass two vectors of one length"
        )
    d = b.double() - a.double()
    method = f"Student's t over {len(d)} pairs" + (f", Bonferroni for {comparisons}" if comparisons > 1 else "")
    return Difference(student(d.tolist(), method, UNBOUNDED, comparisons))


def independent_difference(a: Estimate, b: Estimate, comparisons: int = 1) -> Difference:
    """Return b − a from two 95% intervals that need not be symmetric (MOVER; Zou & Donner 2008).

    It takes the two as independent. Where they rise and fall together, its interval is too wide, never too narrow.
    """
    if a.value is None or b.value is None:
        return Difference(Estimate(None, reason=a.reason or b.reason))
    d = b.value - a.value
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return Difference(Estimate(d))
    wider = NormalDist().inv_cdf(1 - 0.025 / comparisons) / NormalDist().inv_cdf(0.975)
    low = d - wider * math.hypot(b.value - b.low, a.high - a.value)
    high = d + wider * math.hypot(b.high - b.value, a.value - a.low)
    return Difference(Estimate(d, low, high, method="Zou–Donner"))
