"""The difference of one metric between two predictors on the same items: interval and p-value.

Both see the same bootstrap weights, so what the items have in common cancels. Smooth metrics: BCa of
the replicates' differences, and the p-value at which that interval would touch 0.

Calibration errors: the plug-in is biased up, and more so where true gaps are small, so that a calibrated
predictor's error is all bias and a miscalibrated one's is not; no bootstrap around the observed gaps knows.
The interval is the range of differences that a test accepts (`difference_range`), over the lines of population gaps
that give each predictor's own upper end (`calibration_intervals`, *spread*) and the noise both share (`paired_noise`).
To take the worst of several shapes at each end, as one predictor's interval does, would cover 100% and see little. The
interval is cut to how far the predictors' gaps differ (‖v‖ − ‖u‖ ≤ ‖v − u‖), and always holds the observed difference.
p is the level at which it would touch 0. Coverage and power are in docs/coverage_paired.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.functional.classwise import classwise_influence
from calibrant.metrics.bca import acceleration, bca, design_effect, influence, normal_cdf, normal_quantile, summed
from calibrant.metrics.bootstrap import coarse
from calibrant.metrics.calibration import GapError
from calibrant.metrics.calibration_cells import Cells
from calibrant.metrics.classwise import classwise_cells, linear_and_rest, pivot
from calibrant.metrics.difference_range import (
    Curve,
    Rho,
    accepted_range,
    accepted_range_unpaired,
    chance,
    constant,
    correlation,
    critical,
    curve,
)
from calibrant.metrics.paired_noise import PairedNoise, reach
from calibrant.metrics.table import Metric, Panel
from calibrant.types import Predictions

ALIKE = "no item tells them apart"
ACCEPTED = "range of differences that a test on simulated gaps accepts"

_CLEAR = 3.0  # pivot of 0 beyond which an error is not noise, and neither is its sign
_TAIL = 10  # replicates beyond 0 below which their count says less than a normal tail


@dataclass(frozen=True)
class Paired:
    """Interval and two-sided p-value of one difference, and how they were made."""

    low: float
    high: float
    p: float
    method: str

    def mirrored(self) -> Paired:
        """Of a against b, where this is of b against a."""
        return Paired(-self.high, -self.low, self.p, self.method)


def agreed(found: Paired, least: float, level: float) -> Paired:
    """p not below `least`, and 0 inside the interval if and only if p says so; where the two differ, the cautious one.

    They differ where p is of a normal tail and the interval of replicates, or where `least` is all that few items can
    show."""
    p, holds = max(found.p, least), found.low <= 0 <= found.high
    if p >= 1 - level:
        return Paired(min(found.low, 0.0), max(found.high, 0.0), p, found.method)
    return Paired(found.low, found.high, 1 - level if holds else p, found.method)


def smooth(
    metric: Metric,
    panels: tuple[Panel, Panel],
    values: tuple[float, float],
    replicates: tuple[Tensor, Tensor],
    level: float,
) -> Paired:
    folded = metric.better == "zero"  # a gap is judged by its size
    a, b = (r.abs() for r in replicates) if folded else replicates
    observed = abs(values[1]) - abs(values[0]) if folded else values[1] - values[0]
    drawn = (b - a)[torch.isfinite(b - a)]  # a replicate without a single error has no AUROC
    spread = float(drawn.std())
    if spread <= 1e-12 * max(1.0, *(abs(v) for v in values)):
        if abs(observed) < 1e-12:
            return Paired(observed, observed, 1.0, ALIKE)
        return Paired(observed, observed, 0.0, "every resample gives the same difference")
    u = _influence_of_difference(metric, panels, values, folded)
    accelerated = acceleration(u, panels[0].scores.group)
    low, high = bca(observed, drawn, accelerated, level)
    return Paired(low, high, bca_p(observed, drawn, accelerated), "BCa of the paired bootstrap")


def _influence_of_difference(
    metric: Callable[[Panel], Tensor], panels: tuple[Panel, Panel], values: tuple[float, float], folded: bool
) -> Tensor:
    out = torch.zeros(panels[0].scores.n, dtype=torch.float64)
    for sign, panel, value in zip((-1.0, 1.0), panels, values, strict=True):
        if value == 0 and not folded:  # every item at the least it can be; a root has no slope there
            continue
        order, ranked = coarse(panel)
        slope = sign * (math.copysign(1.0, value) if folded else 1.0)
        out[order] += slope * influence(metric, ranked)
    return out


def bca_p(observed: float, drawn: Tensor, accelerated: float) -> float:
    """Two-sided p of 'no difference': the level at which the BCa interval touches 0."""
    count = int((drawn < 0).sum()) + int((drawn == 0).sum()) / 2  # counts: a share and 1 less it round differently
    below = count / len(drawn)
    if min(count, len(drawn) - count) < _TAIL:
        z = -observed / float(drawn.std())
        return 2 * normal_cdf(-abs(z))
    share = float((drawn < observed).double().mean() + (drawn == observed).double().mean() / 2)
    z0 = normal_quantile(min(max(share, 1e-6), 1 - 1e-6))
    z = normal_quantile(below) - z0
    w = z / (1 + accelerated * z) - z0
    return min(1.0, 2 * normal_cdf(-abs(w)))


def calibration(error: GapError, noise: PairedNoise, values: tuple[float, float], level: float) -> Paired:
    """Of an error of gaps; the values may be those of a metric that only estimates it."""
    observed = values[1] - values[0]
    if observed == 0 and _alike(noise.panels):
        return Paired(0.0, 0.0, 1.0, ALIKE)
    both = noise.cells(error.cells)
    if all(c.certain for c in both.cells):  # only the confidences vary, and they are smooth
        return _around(error, noise.panels, values, level)
    lines = zip(both.cells, noise.lines(error), strict=True)
    a, b = (curve(error.of(line.gap * c.mass, c), error.of(line.drawn, c), _seen(error, c)) for c, line in lines)
    far = reach(both, error, normal_quantile((1 + level) / 2))
    rho: Rho | None = correlation(a, b)
    if error.side != "both" and min(float(a.z[0]), float(b.z[0])) < _CLEAR:
        # A walk's sign may be noise's: what raises one predictor's KS then lowers the other's, which no ρ describes.
        # Of one-sided errors near 0, the gaps of the other sign decide ρ, and they are noise.
        rho = None if error.side == "walk" else constant(0.0)
    found = _accepted(a, b, rho, far, observed, level)
    if any(c.certain for c in both.cells):  # lines that end at an accuracy of 1 know nothing beyond
        plain = _around(error, noise.panels, values, level)
        return Paired(min(found.low, plain.low), max(found.high, plain.high), max(found.p, plain.p), ACCEPTED)
    return found


def _seen(error: GapError, c: Cells) -> float:
    return float(error.of(c.mass * c.gap, c))


def _accepted(a: Curve, b: Curve, rho: Rho | None, far: tuple[float, float], observed: float, level: float) -> Paired:
    """Both ends from the curves, cut to `far` (below, above), and the observed difference inside."""
    if far == (0.0, 0.0):
        return Paired(observed, observed, 1.0, ALIKE)
    if rho is None:
        least, most, not_above, not_below = accepted_range_unpaired(a, b, normal_quantile((1 + level) / 2))
        p = math.erfc(abs(not_above - not_below) / math.sqrt(2))
    else:
        least, most, not_above, not_below = accepted_range(a, b, rho, critical(level))
        p = chance(abs(not_above - not_below))  # one of the two is 0, but for rounding
    least, most = min(max(least, -far[0]), observed), max(min(most, far[1]), observed)
    if least > 0 or most < 0:
        return Paired(least, most, min(p, 1 - level), ACCEPTED)
    # 0 is inside by the observed difference alone, which then has the other sign: nothing is said
    return Paired(least, most, p if p >= 1 - level else 1.0, ACCEPTED)


def _around(error: GapError, panels: tuple[Panel, Panel], values: tuple[float, float], level: float) -> Paired:
    """Normal, from each item's influence on the difference."""
    u = _by_unit(_influence_of_difference(error, panels, values, False), panels[0].scores.group)
    spread = math.sqrt(float(u.square().sum()))
    return normal(values[1] - values[0], spread, level, "influence of each item")


def normal(centre: float, spread: float, level: float, method: str) -> Paired:
    half = normal_quantile((1 + level) / 2) * spread
    p = 2 * normal_cdf(-abs(centre) / spread) if spread > 0 else float(abs(centre) < 1e-12)
    return Paired(centre - half, centre + half, p, method)


def classwise(
    predictions: tuple[Predictions, Predictions], panels: tuple[Panel, Panel], values: tuple[float, float], level: float
) -> Paired:
    """Classwise ECE keeps cells, not items: a second pass over the logits gives each item's influence."""
    n, group, bins = panels[0].scores.n, panels[0].scores.group, panels[0].scores.bins
    tables = [panel.scores.classwise for panel in panels]
    delta = [(t.confidence - t.positive) / (n * len(t.count)) for t in tables if t is not None]
    apart = torch.sign(delta[1] - delta[0])
    influences, variances, curves, moved = [], [], [], []
    for p, panel, table in zip(predictions, panels, tables, strict=True):
        assert table is not None
        k = len(table.count)
        signs, _, rest = linear_and_rest(classwise_cells(table, n), k)
        full = torch.zeros_like(table.count)
        full[table.count > 0] = signs
        u = _by_unit(classwise_influence(p, full, bins) / (n * k), group)
        influences.append(u)
        variances.append(float(u.square().sum()) + float(rest) / k**2)
        moved.append(_by_unit(classwise_influence(p, apart, bins) / (n * k), group))
        signed = panel.scores.confidence - panel.scores.correct.double()
        curves.append(pivot(table, n, 1.0 if group is None else max(1.0, design_effect(signed, group))))
    scale = math.sqrt(variances[0] * variances[1])
    together = 0.0 if scale == 0 else float(influences[0] @ influences[1]) / scale
    error = math.sqrt(float((moved[1] - moved[0]).square().sum()))
    far = float((delta[1] - delta[0]).abs().sum()) + normal_quantile((1 + level) / 2) * error
    return _accepted(curves[0], curves[1], constant(together), (far, far), values[1] - values[0], level)


def _alike(panels: tuple[Panel, Panel]) -> bool:
    a, b = (p.scores for p in panels)
    return torch.equal(a.confidence, b.confidence) and torch.equal(a.correct, b.correct)


def _by_unit(influence: Tensor, group: Tensor | None) -> Tensor:
    """Centred, and summed over groups where these are what would be drawn again."""
    return summed(influence - influence.mean(), group)
