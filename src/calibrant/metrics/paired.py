"""The difference of one metric between two predictors on the same items: its interval and p-value.

Smooth metrics: both predictors see the same bootstrap draws, so what the items have in common cancels. The interval is
BCa of the replicates' differences, and p is the level at which it would touch 0.

Calibration errors: the observed error is biased up, and more so where the true gaps are small. So a calibrated
predictor's error is all bias while a miscalibrated one's is not, and no bootstrap around the observed gaps corrects
that. The interval is the range of differences that a test accepts (`difference_range`). The populations are those of
each predictor's own upper end (the *spread* line of `calibration_intervals`), with the noise that both share
(`paired_noise`). Taking the worst of several lines at each end, as one predictor's interval does, would cover 100% and
detect little. The interval never exceeds how far the predictors' gaps differ (‖v‖ − ‖u‖ ≤ ‖v − u‖), and always
contains the observed difference. p is the level at which it would touch 0. docs/coverage_paired.md has coverage and
power.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.functional.classwise import classwise_influence
from calibrant.metrics.bca import acceleration, bca, design_effect, influence, normal_cdf, normal_quantile, sum_by_unit
from calibrant.metrics.calibration import GapError
from calibrant.metrics.calibration_cells import Cells
from calibrant.metrics.classwise_interval import classwise_cells, linear_and_rest, pivot
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
from calibrant.metrics.panel import Metric, Panel
from calibrant.types import Predictions

ALIKE = "no item tells them apart"
ACCEPTED = "range of differences that a test on simulated gaps accepts"

_CLEAR = 3.0  # an error whose pivot at 0 is larger is not noise, and neither is its sign
_TAIL = 10  # with fewer replicates beyond 0, a normal tail is more precise than their count


@dataclass(frozen=True)
class Paired:
    """Interval and two-sided p-value of one difference, and how they were made."""

    low: float
    high: float
    p: float
    method: str

    def mirrored(self) -> Paired:
        """The result for a against b, where this one is for b against a."""
        return Paired(-self.high, -self.low, self.p, self.method)


def reconciled(found: Paired, least: float, level: float) -> Paired:
    """The result with p at least `least` and with 0 inside the interval if and only if p is not significant.

    The two may disagree if p comes from a normal tail and the interval from replicates, or if few items cannot show
    less than `least`. Then the cautious one decides.
    """
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
        if value == 0 and not folded:  # every item is at its minimum, where a root has no slope
            continue
        order, ranked = panel.merged_cells
        slope = sign * (math.copysign(1.0, value) if folded else 1.0)
        out[order] += slope * influence(metric, ranked)
    return out


def bca_p(observed: float, drawn: Tensor, accelerated: float) -> float:
    """Two-sided p of 'no difference': the level at which the BCa interval touches 0."""
    count = int((drawn < 0).sum()) + int((drawn == 0).sum()) / 2  # a count, because s and 1 − s round differently
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
    """The difference of an error of gaps; the values may be those of a metric that estimates it."""
    observed = values[1] - values[0]
    if observed == 0 and _alike(noise.panels):
        return Paired(0.0, 0.0, 1.0, ALIKE)
    both = noise.cells(error.cells)
    if all(c.certain for c in both.cells):  # only the confidences vary, and the error is smooth in them
        return _from_influences(error, noise.panels, values, level)
    lines = zip(both.cells, noise.lines(error), strict=True)
    a, b = (curve(error.of(line.gap * c.mass, c), error.of(line.drawn, c), _seen(error, c)) for c, line in lines)
    far = reach(both, error, normal_quantile((1 + level) / 2))
    rho: Rho | None = correlation(a, b)
    if error.side != "both" and min(float(a.z[0]), float(b.z[0])) < _CLEAR:
        # The sign of a walk may be noise. Then what raises one predictor's KS may lower the other's, which no ρ
        # describes. For one-sided errors near 0, ρ is decided by the gaps of the other sign, which are noise.
        rho = None if error.side == "walk" else constant(0.0)
    found = _accepted(a, b, rho, far, observed, level)
    if any(c.certain for c in both.cells):  # a line that ends at an accuracy of 1 has no noise there
        plain = _from_influences(error, noise.panels, values, level)
        return Paired(min(found.low, plain.low), max(found.high, plain.high), max(found.p, plain.p), ACCEPTED)
    return found


def _seen(error: GapError, c: Cells) -> float:
    return float(error.of(c.mass * c.gap, c))


def _accepted(a: Curve, b: Curve, rho: Rho | None, far: tuple[float, float], observed: float, level: float) -> Paired:
    """The interval from the curves, within `far` (below, above) and around the observed difference."""
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
    # if 0 is inside only because the observed difference has the other sign, nothing is claimed
    return Paired(least, most, p if p >= 1 - level else 1.0, ACCEPTED)


def _from_influences(error: GapError, panels: tuple[Panel, Panel], values: tuple[float, float], level: float) -> Paired:
    """A normal interval from each item's influence on the difference."""
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
    """The difference in classwise ECE. Its sums are kept per cell, so a second pass over the logits finds the influence
    of each item."""
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
    """The centred influence of each resampled unit."""
    return sum_by_unit(influence - influence.mean(), group)
