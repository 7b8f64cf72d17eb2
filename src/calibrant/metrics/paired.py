"""The difference of one metric between two predictors on the same items: interval and p-value.

Both see the same bootstrap weights, so what the items have in common cancels. Smooth metrics: BCa of
the replicates' differences, and the p-value at which that interval would touch 0. Calibration errors:
the plug-in is biased up, and more so where true gaps are small, so the difference is also taken of
gaps shrunk by what noise explains. Shrinking has a threshold, and which side of it a gap falls on is chance too; so the
interval holds both centres ± normal quantiles of the replicates' spread, and a difference is one only if both say so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.functional.classwise import classwise_influence
from calibrant.metrics import inversion
from calibrant.metrics.bca import acceleration, bca, influence, normal_cdf, normal_quantile
from calibrant.metrics.bootstrap import coarse
from calibrant.metrics.classwise import classwise_cells, linear_and_rest
from calibrant.metrics.gaps import cells
from calibrant.metrics.table import Metric, Panel
from calibrant.types import Predictions

_TAIL = 10  # replicates beyond 0 below which their count says less than a normal tail


@dataclass(frozen=True)
class Paired:
    """Interval and two-sided p-value of one difference, and how they were made."""

    low: float
    high: float
    p: float
    method: str


def smooth(
    metric: Metric,
    panels: tuple[Panel, Panel],
    values: tuple[float, float],
    replicates: tuple[Tensor, Tensor],
    level: float,
) -> Paired | None:
    """None when too many replicates have no value (no error drawn)."""
    folded = metric.better == "zero"  # a gap is judged by its size
    a, b = (r.abs() for r in replicates) if folded else replicates
    observed = abs(values[1]) - abs(values[0]) if folded else values[1] - values[0]
    drawn = (b - a)[torch.isfinite(b - a)]
    if len(drawn) < 0.9 * len(a):
        return None
    spread = float(drawn.std())
    if spread <= 1e-12 * max(1.0, *(abs(v) for v in values)):
        if abs(observed) < 1e-12:
            return Paired(observed, observed, 1.0, "no item tells them apart")
        return Paired(observed, observed, 0.0, "every resample gives the same difference")
    u = _influence_of_difference(metric, panels, values, folded)
    accelerated = acceleration(u, panels[0].scores.group)
    low, high = bca(observed, drawn, accelerated, level)
    return Paired(low, high, bca_p(observed, drawn, accelerated), "BCa of the paired bootstrap")


def _influence_of_difference(
    metric: Metric, panels: tuple[Panel, Panel], values: tuple[float, float], folded: bool
) -> Tensor:
    out = torch.zeros(panels[0].scores.n, dtype=torch.float64)
    for sign, panel, value in zip((-1.0, 1.0), panels, values, strict=True):
        order, ranked = coarse(panel)
        slope = sign * (math.copysign(1.0, value) if folded else 1.0)
        out[order] += slope * influence(metric, ranked)
    return out


def bca_p(observed: float, drawn: Tensor, accelerated: float) -> float:
    """Two-sided p of 'no difference': the level at which the BCa interval touches 0."""
    below = float((drawn < 0).double().mean() + (drawn == 0).double().mean() / 2)
    if min(below, 1 - below) * len(drawn) < _TAIL:
        z = -observed / float(drawn.std())
        return 2 * normal_cdf(-abs(z))
    share = float((drawn < observed).double().mean() + (drawn == observed).double().mean() / 2)
    z0 = normal_quantile(min(max(share, 1e-6), 1 - 1e-6))
    z = normal_quantile(below) - z0
    w = z / (1 + accelerated * z) - z0
    return min(1.0, 2 * normal_cdf(-abs(w)))


def calibration(
    name: str, panels: tuple[Panel, Panel], values: tuple[float, float], replicates: tuple[Tensor, Tensor], level: float
) -> Paired:
    """A binned error, as it is and of shrunk gaps; or KS, as it is."""
    plain = values[1] - values[0]
    shrunk = plain if name == "ks" else _shrunk(name, panels[1]) - _shrunk(name, panels[0])
    spread, method = float((replicates[1] - replicates[0]).std()), "paired bootstrap, plain and debiased centre"
    ends = [normal(centre, spread, level, method) for centre in (plain, shrunk)]
    p = max(end.p for end in ends) if plain * shrunk > 0 or plain == shrunk else 1.0
    return Paired(min(end.low for end in ends), max(end.high for end in ends), p, method)


def normal(centre: float, spread: float, level: float, method: str) -> Paired:
    half = normal_quantile((1 + level) / 2) * spread
    p = 2 * normal_cdf(-abs(centre) / spread) if spread > 0 else float(abs(centre) < 1e-12)
    return Paired(centre - half, centre + half, p, method)


def _shrunk(name: str, panel: Panel) -> float:
    """The metric of gaps from which noise is taken out; `ece_debiased` has done that to itself."""
    s = panel.scores
    if name in ("ks", "ece_debiased"):
        return float(inversion.ece(panel.width.gap, cells(panel.width_index, s.confidence, s.correct)))
    statistic, _ = inversion.STATISTICS[name]
    held = cells(panel.mass_index if name == "ece_mass" else panel.width_index, s.confidence, s.correct, s.group)
    return float(statistic(held.mass * inversion.shrunk(held), held))


def classwise(
    predictions: tuple[Predictions, Predictions], panels: tuple[Panel, Panel], values: tuple[float, float], level: float
) -> Paired:
    """Classwise ECE keeps cells, not items: a second pass over the logits gives each item's influence."""
    n, group = panels[0].scores.n, panels[0].scores.group
    u, rest, centres = torch.zeros(n, dtype=torch.float64), 0.0, []
    for sign, p, panel in zip((-1.0, 1.0), predictions, panels, strict=True):
        table = panel.scores.classwise
        assert table is not None
        k = len(table.count)
        held = classwise_cells(table, n)
        signs, _, noise = linear_and_rest(held, k)
        full = torch.zeros_like(table.count)
        full[table.count > 0] = signs
        u += sign * classwise_influence(p, full, panel.scores.bins) / k
        rest += float(noise) / k**2
        centres.append(float((held.mass * inversion.shrunk(held)).abs().sum()) / k)
    u -= u.mean()
    if group is not None:
        u = torch.zeros(int(group.max()) + 1, dtype=torch.float64).index_add_(0, group, u)
    spread = math.sqrt(float(u.square().sum()) / n**2 + rest)
    return normal(centres[1] - centres[0], spread, level, "influence of each item, debiased centre")
