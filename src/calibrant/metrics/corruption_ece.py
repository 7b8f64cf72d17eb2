"""The interval of a mean ECE over many cells of the same items, by inverting a test (as `inversion` does for one cell).

Averaging cells averages their noise but not the bias that noise gives to |gap|, so a centre with a spread cannot cover.
Along lines t · shape of population gaps of all bins of all cells at once, the mean ECE is simulated with the noise that
items bring into all cells together, and the interval is the population's value over those t at which the observed one
is unsurprising. The lower end takes the gaps shrunk by what noise explains, the upper end none below its own noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.metrics import inversion
from calibrant.metrics.gaps import Cells, cells, possible
from calibrant.metrics.table import Panel


@dataclass(frozen=True)
class Gaps:
    """One cell's occupied bins, and what each item adds to the gap of its bin."""

    held: Cells
    which: Tensor  # [N] occupied bin of each item
    signed: Tensor  # [N] confidence − correct

    @classmethod
    def of(cls, panel: Panel) -> Gaps:
        s = panel.scores
        which = torch.unique(panel.width_index, return_inverse=True)[1]
        return cls(cells(panel.width_index, s.confidence, s.correct, s.group), which, s.confidence - s.correct.double())

    @property
    def ece(self) -> float:
        return float((self.held.mass * self.held.gap).abs().sum())

    def noise(self, w: Tensor) -> Tensor:
        """What other draws of the items (weights [B, N] that sum to 1) would add to the gaps: [B, bins]."""
        member = torch.nn.functional.one_hot(self.which, len(self.held.count)).double() * self.signed[:, None]
        return w @ member - member.mean(0)


def mean_ece(
    parts: Sequence[Gaps], noise: Sequence[Tensor], level: float, weights: Sequence[float] | None = None
) -> tuple[float, float]:
    """Ends of the interval of the mean over cells; `noise` [B, bins] of each cell under the same draws.

    `weights` are the cells' factors, 1/cells for a mean; those of mCECE are 1/(types · Σ_s of the reference).
    """
    factors = [1 / len(parts)] * len(parts) if weights is None else list(weights)
    share = torch.cat(
        [torch.full((len(p.held.count),), f, dtype=torch.float64) for p, f in zip(parts, factors, strict=True)]
    )
    moved = torch.cat(list(noise), 1)
    observed = sum(f * p.ece for f, p in zip(factors, parts, strict=True))
    tail = (1 - level) / 2
    least = _along(parts, [inversion.concentrated(p.held) for p in parts], moved, share, observed, 1 - tail)
    most = _along(parts, [inversion.spread(p.held) for p in parts], moved, share, observed, tail)
    return least, max(least, most)


def _along(
    parts: Sequence[Gaps], shapes: Sequence[Tensor], moved: Tensor, share: Tensor, observed: float, quantile: float
) -> float:
    """The population's value at which `quantile` of what is drawn meets what was observed; 0 where it begins above."""
    values, ends = [], []
    for t in inversion.GRID.tolist():
        gap = torch.cat([p.held.mass * possible(p.held, t * s) for p, s in zip(parts, shapes, strict=True)])
        values.append(float(gap.abs() @ share))
        ends.append(float(torch.quantile((gap + moved).abs() @ share, quantile)))
    if ends[0] >= observed:
        return 0.0
    return float(np.interp(observed, np.maximum.accumulate(ends), values))
