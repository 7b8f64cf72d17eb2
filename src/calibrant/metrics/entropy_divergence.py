"""How far apart the entropies of two sets lie: symmetrised KL of their histograms (PEP §3.2), with its interval.

    J = KL(p ‖ q) + KL(q ‖ p) = Σ_b (p_b − q_b) log(p_b / q_b)

Noise alone makes J positive, so a bootstrap, which adds noise to noise, never covers two equal populations. As for ECE,
a test is inverted instead: histograms are drawn from populations r^(1−t)·p^t and r^(1−t)·q^t, on the line through the
observed p, q and their mean r. The interval is J of the populations at those t where the observed J is unsurprising.
The estimand is J of the population's histograms, smoothed like the observed ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional import novelty
from calibrant.metrics.conventions import Resampling
from calibrant.types import Estimate

LINE = torch.cat([torch.linspace(0, 1.2, 25), torch.tensor([1.35, 1.6, 2.0, 3.0])]).double()
"""Values of t at which histograms are drawn; quantiles in between are interpolated."""


@dataclass(frozen=True)
class Binning:
    """How entropies become histograms: `bins` bins, logarithmic from 1e-8 (or linear from 0) to ln K."""

    bins: int = 30
    spacing: novelty.Spacing = "log"
    smoothing: float = 0.5  # items added to each bin, because an empty bin would make J infinite

    def __post_init__(self) -> None:
        if self.bins < 2 or self.smoothing <= 0:
            raise InputError(f"binning needs 2 bins or more and smoothing above 0, not {self.bins}, {self.smoothing}")
        if self.spacing not in ("log", "linear"):
            raise InputError(f"spacing {self.spacing!r} of entropy's bins is unknown; use log or linear")

    def describe(self, k: int) -> str:
        first = "1e-8 (all below in the first bin)" if self.spacing == "log" else "0"
        return f"{self.bins} {self.spacing} bins from {first} to ln {k}, {self.smoothing:g} items added to each"


def entropy_divergence(
    entropies: tuple[Tensor, Tensor], k: int, binning: Binning, resampling: Resampling | None = None
) -> Estimate:
    """J of two sets of entropies of K-class predictions."""
    edges = novelty.entropy_edges(k, binning.bins, binning.spacing)
    counts = torch.stack([novelty.histogram(e.cpu(), edges) for e in entropies])
    observed = float(novelty.symmetrised_kl(counts[0], counts[1], binning.smoothing))
    point = Estimate(observed)
    if resampling is None or min(len(e) for e in entropies) < 2:
        return point
    low, high = inverted(counts, observed, binning.smoothing, resampling)
    return replace(point, low=low, high=high, method="test inversion on drawn histograms")


def inverted(counts: Tensor, observed: float, smoothing: float, resampling: Resampling) -> tuple[float, float]:
    """The interval from counts [2, bins]. Its lower end is 0 where equal populations are not rejected."""
    sizes = counts.sum(1)
    share = (counts + smoothing) / (sizes + smoothing * counts.shape[1])[:, None]
    middle = share.mean(0).log()
    tail = (1 - resampling.level) / 2
    values, tops, below = [], [], []
    for t in LINE.tolist():
        p = torch.softmax((1 - t) * middle + t * share.log(), 1)
        values.append(float(novelty.symmetrised_kl(p[0] * sizes[0], p[1] * sizes[1], smoothing)))
        generator = np.random.default_rng(resampling.seed)  # the same at every t: quantiles move smoothly
        drawn = [
            torch.from_numpy(generator.multinomial(int(n), (row / row.sum()).numpy(), size=resampling.replicates))
            for n, row in zip(sizes, p, strict=True)
        ]
        found = novelty.symmetrised_kl(drawn[0], drawn[1], smoothing)
        tops.append(float(torch.quantile(found, 1 - tail)))
        below.append((1 + float((found <= observed).sum())) / (1 + resampling.replicates))
    low = 0.0 if tops[0] >= observed else float(np.interp(observed, np.maximum.accumulate(tops), values))
    # An observed J that is unusually small even for equal populations must not make the interval too short. So the tail
    # is taken relative to that of equal populations, as physicists do for a signal over background (the CLs method).
    relative = np.minimum.accumulate(np.array(below) / below[0])
    return low, max(low, float(np.interp(-tail, -relative, values)))
