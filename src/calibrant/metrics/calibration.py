"""Calibration errors of confidence: norms of the gaps of ordered cells (ECE and its variants, KS), debiased ECE and
classwise ECE.

Cell c holds a share m_c of the items, with the mean confidence p_c. With its gap δ_c = (Σ conf − Σ correct)/N:

    ece         Σ |δ_c|                        over bins of equal width (ece_mass: of equal mass; Nixon 2020)
    ece_l2      √Σ δ_c²/m_c                    the root mean square of conf_c − acc_c
    ece_max     max |δ_c|/m_c                  over bins that hold items
    ece_over    Σ max(δ_c, 0), and ece_under   Σ max(−δ_c, 0), which sum to ece
    oe          Σ p_c · max(δ_c, 0)            overconfidence error (Thulasidasan 2019)
    ks          max_t |Σ_{conf_c ≤ t} δ_c|     over runs of equal confidence (Gupta 2021)

One line here defines such an error. Its value, its interval (`calibration_intervals`) and its differences (`paired`)
are computed from the same vector and norm.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from calibrant.functional.scores import Scores

if TYPE_CHECKING:
    from calibrant.metrics.panel import Metric, Panel

Kind = Literal["width", "mass", "walk"]
"""What the cells are: bins of equal width, bins of equal mass, or runs of equal confidence (least confident first)."""

Side = Literal["both", "over", "under", "walk"]
"""Which gaps an error counts: all, overconfident ones, underconfident ones, or the cumulative sum ("walk") of KS."""


@dataclass(frozen=True)
class Norm:
    """`size`: the norm of a vector [..., C]. `reach`: how far a change of the vector can (lower, raise) the norm."""

    size: Callable[[Tensor], Tensor]
    reach: Callable[[Tensor], tuple[Tensor, Tensor]]


def _symmetric(size: Callable[[Tensor], Tensor]) -> Norm:
    return Norm(size, lambda change: (size(change), size(change)))


def _rising(x: Tensor) -> Tensor:
    return x.clamp_min(0).sum(-1)


SUM = _symmetric(lambda x: x.abs().sum(-1))
LENGTH = _symmetric(lambda x: x.square().sum(-1).sqrt())
LARGEST = _symmetric(lambda x: x.abs().amax(-1))
RISING = Norm(_rising, lambda change: (_rising(-change), _rising(change)))


@dataclass(frozen=True)
class GapError:
    """An error that is the norm of a vector which is linear in the gaps δ [..., C].

    `vector` is given δ and the cells, of which it may use `mass` and `mean_confidence`.
    """

    cells: Kind = "width"
    norm: Norm = SUM
    vector: Callable[[Tensor, Any], Tensor] = lambda delta, cells: delta
    side: Side = "both"

    def of(self, delta: Tensor, cells: Any) -> Tensor:
        return self.norm.size(self.vector(delta, cells))

    def __call__(self, panel: Panel) -> Tensor:
        if self.cells == "walk":
            return self.of(panel.walk, None)
        sums = panel.width if self.cells == "width" else panel.mass
        return self.of(sums.gap, sums)


def _held(mass: Tensor) -> Tensor:
    """The mass as a divisor: the gap of a cell without items is 0, not 0/0."""
    return mass.clamp_min(1e-300)


ECE = GapError()
ECE_MASS = GapError("mass")
ECE_L2 = GapError(norm=LENGTH, vector=lambda delta, cells: delta / _held(cells.mass).sqrt())
ECE_MAX = GapError(norm=LARGEST, vector=lambda delta, cells: delta / _held(cells.mass))
ECE_OVER = GapError(norm=RISING, side="over")
ECE_UNDER = GapError(norm=RISING, vector=lambda delta, cells: -delta, side="under")
OE = GapError(norm=RISING, vector=lambda delta, cells: cells.mean_confidence * delta, side="over")
KS = GapError("walk", LARGEST, lambda delta, cells: torch.cumsum(delta, -1), "walk")


def gap(scores: Scores) -> Tensor:
    """Confidence − correctness of each item; a positive mean is overconfident."""
    return scores.confidence - scores.correct.double()


def ece_debiased(panel: Panel) -> Tensor:
    """ECE minus its upward bias (Kumar 2019 §G, in closed form), at least 0.

    If the accuracy of bin b is normal, N(acc_b, acc_b(1 − acc_b)/n_b), then |gap| is a folded normal. Its expectation
    minus the observed |gap| is the bias.
    """
    s = panel.width
    acc = s.accuracy
    sd = (acc * (1 - acc) * s.count).clamp_min(0).sqrt() / s.total
    excess = folded_mean(s.gap, sd) - s.gap.abs()
    return (s.gap.abs() - excess).sum(-1).clamp_min(0)


def estimated(metric: Metric) -> GapError | None:
    """The error of gaps that a metric estimates, and that its interval is about; None for any other metric."""
    if metric.compute is ece_debiased:
        return ECE
    return metric.compute if isinstance(metric.compute, GapError) else None


def folded_mean(mean: Tensor, sd: Tensor) -> Tensor:
    """E|X| for X ~ N(mean, sd²)."""
    safe = sd.clamp_min(1e-300)
    z = mean / safe
    density = torch.exp(-z * z / 2) * math.sqrt(2 / math.pi)
    return torch.where(sd > 0, sd * density + mean * torch.erf(z / math.sqrt(2)), mean.abs())


def ece_classwise(panel: Panel) -> Tensor:
    """Mean over classes of the one-vs-rest ECE (Nixon 2020; Kull 2019)."""
    cells = panel.classwise
    assert cells is not None and panel.weights is None, "classwise sums are kept per cell, not per item"
    return ((cells.confidence - cells.positive).abs().sum() / (panel.n * len(cells.count)))[None]


def needs_classes(panel: Panel) -> str | None:
    return "a top-1 file has no probabilities of the other classes" if panel.classwise is None else None
