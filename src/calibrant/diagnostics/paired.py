"""Do two networks differ beyond noise? Paired differences of what was measured on the same items or mini-batches.

    d_i = b_i − a_i,   mean d ± t_{n−1} · s_d / √n,   at level 1 − 0.05/m for m comparisons (Bonferroni)

It compares these two networks. A claim about the methods behind them needs several seeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from calibrant.diagnostics.levels import student
from calibrant.errors import InputError
from calibrant.types import Estimate


@dataclass(frozen=True)
class Difference:
    """Mean of b − a with its interval; `beyond` noise if that does not hold 0."""

    estimate: Estimate
    n: int

    @property
    def beyond(self) -> bool:
        low, high = self.estimate.low, self.estimate.high
        return low is not None and high is not None and not low <= 0 <= high


def paired_difference(a: Tensor, b: Tensor, comparisons: int = 1) -> Difference:
    """b − a, item by item; without an interval for a single item."""
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(
            f"{tuple(a.shape)} and {tuple(b.shape)} are not the same items; pass two vectors of one length"
        )
    d = b.double() - a.double()
    method = f"Student's t over {len(d)} pairs" + (f", Bonferroni for {comparisons}" if comparisons > 1 else "")
    return Difference(student(d.tolist(), method, (-math.inf, math.inf), comparisons), len(d))
