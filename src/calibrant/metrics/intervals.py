"""A 95% interval for every metric, each by the method that covers (docs/coverage.md).

Proportions: Wilson. Calibration errors: inversion of a test (`calibration_intervals`, `classwise`). AUROC of few
errors: Newcombe. Other means: BCa in closed form. Rankings: BCa over a bootstrap of items, drawn as the cells that they
fall into. With groups, BCa over a bootstrap of groups. An interval that would be a guess is None, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from calibrant.metrics import calibration_intervals
from calibrant.metrics.bca import NEWCOMBE, acceleration, bca, bca_of_mean, design_effect, influence, newcombe, wilson
from calibrant.metrics.bootstrap import bootstrap, coarse
from calibrant.metrics.calibration_cells import Cells, noise
from calibrant.metrics.caveats import MANY, caveat, rarer, too_few
from calibrant.metrics.cells import UNMOVED, with_bca
from calibrant.metrics.classwise import classwise_interval
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.table import Mean, Metric, Panel, of_runs
from calibrant.types import Estimate

INVERSION = "test inversion on simulated gaps"


def with_intervals(
    panel: Panel, metrics: Sequence[Metric], points: Mapping[str, Estimate], resampling: Resampling
) -> dict[str, Estimate]:
    """The same estimates with low, high and method filled in."""
    group = panel.group
    unit, count = ("items", panel.n) if group is None else ("groups", int(group.max()) + 1)
    if count < 2:
        return {
            name: e if e.value is None else replace(e, reason=f"one {unit[:-1]}: no interval")
            for name, e in points.items()
        }
    known = [m for m in metrics if points[m.name].value is not None]
    gaps = gap_intervals(panel, {m.name for m in known}, resampling)
    rare, level = rarer(panel), resampling.level
    out, drawn = dict(points), []
    for m in known:
        name, e = m.name, points[m.name]
        if (reason := too_few(name, rare, drawn=group is not None)) is not None:
            out[name] = replace(e, reason=reason)
        elif name == "accuracy":
            out[name] = _accuracy(panel, e, level)
        elif name == "auroc" and group is None and rare < MANY:
            out[name] = _auroc(panel, e, level)
        elif isinstance(m.compute, Mean) and group is None:
            out[name] = _mean(panel, m.compute, e, level)
        elif name in gaps:
            low, high = gaps[name]
            # certain and right throughout: noise of the observed size is no noise at all
            unmoved = name == "ks" and low == high
            out[name] = replace(e, reason=UNMOVED) if unmoved else replace(e, low=low, high=high, method=INVERSION)
        else:
            drawn.append(m)
    if drawn:
        out |= _bootstrapped(panel, drawn, points, resampling, f"BCa bootstrap over {unit}")
    return {name: caveat(name, e, rare) for name, e in out.items()}


def _accuracy(panel: Panel, point: Estimate, level: float) -> Estimate:
    assert point.value is not None
    n, method = float(panel.n), "Wilson"
    if panel.group is not None:
        n /= max(1.0, design_effect((panel.scores.predicted == panel.scores.labels).double(), panel.group))
        method = "Wilson, items counted by the design effect of groups"
    low, high = wilson(point.value, n, level)
    return replace(point, low=low, high=high, method=method)


def _auroc(panel: Panel, point: Estimate, level: float) -> Estimate:
    assert point.value is not None
    right, wrong = (int(c.sum()) for c in panel.runs)
    low, high = newcombe(point.value, wrong, right, level)
    return replace(point, low=low, high=high, method=NEWCOMBE)


def _mean(panel: Panel, mean: Mean, point: Estimate, level: float) -> Estimate:
    """The bootstrap of a mean of items is known without drawing it; a mean of groups of several sizes is a ratio."""
    assert point.value is not None
    s = panel.spread_of(mean.column, point.value)
    low, high = bca_of_mean(point.value, s.square, s.third, level)
    if high - low <= 1e-15 * max(1.0, abs(point.value)):
        return replace(point, reason=UNMOVED)
    low, high = max(low, s.least), min(high, s.most)
    return replace(point, low=low, high=high, method="BCa bootstrap over items, in closed form")


def _bootstrapped(
    panel: Panel, metrics: Sequence[Metric], points: Mapping[str, Estimate], resampling: Resampling, method: str
) -> dict[str, Estimate]:
    if panel.group is None:
        good, bad = (c[0] for c in panel.runs)
        wanted = {m.name: points[m.name] for m in metrics}
        return with_bca(wanted, of_runs(metrics), good, bad, resampling, method=method)
    ((on_cells, replicates),) = bootstrap([panel], metrics, resampling.replicates, resampling.seed)
    order, sorted_panel = coarse(panel)
    out = {}
    for m in metrics:
        point, value, drawn = points[m.name], float(on_cells[m.name]), replicates[m.name]
        drawn = drawn[torch.isfinite(drawn)]  # a replicate without a single error has no AUROC
        assert point.value is not None
        if float(drawn.max() - drawn.min()) <= 1e-15 * max(1.0, abs(value)):
            out[m.name] = replace(point, reason=UNMOVED)
            continue
        accelerated = acceleration(influence(m, sorted_panel), panel.group[order])
        shift = point.value - value  # what merging ranks into cells changed
        low, high = (end + shift for end in bca(value, drawn, accelerated, resampling.level))
        out[m.name] = replace(point, low=low, high=high, method=method)
    return out


def gap_intervals(panel: Panel, names: set[str], resampling: Resampling) -> dict[str, tuple[float, float]]:
    """Intervals of those metrics that are functions of gaps; `ece_debiased` estimates what `ece` does."""
    width = {"ece", "ece_l2", "ece_max", "ece_over", "ece_under", "oe", "ece_debiased"} & names
    out: dict[str, tuple[float, float]] = {}
    if width:
        wanted = (width - {"ece_debiased"}) | ({"ece"} if "ece_debiased" in width else set())
        found = invert(panel.width_cells, sorted(wanted), resampling)
        if "ece_debiased" in width:
            found["ece_debiased"] = found["ece"]
        out |= {name: found[name] for name in width}
    if "ece_mass" in names:
        out |= invert(panel.mass_cells, ["ece_mass"], resampling)
    if "ks" in names:
        out |= invert(panel.walk_cells, ["ks"], resampling)
    if "ece_classwise" in names and panel.classwise is not None:
        design = 1.0 if panel.group is None else max(1.0, design_effect(panel.signed, panel.group))
        out["ece_classwise"] = classwise_interval(panel.classwise, panel.n, resampling.level, design)
    return out


def invert(c: Cells, names: Sequence[str], resampling: Resampling) -> dict[str, tuple[float, float]]:
    """Intervals of functions of these cells' gaps."""
    random = noise(len(c.count), resampling.replicates, resampling.seed)
    lines: dict[calibration_intervals.Side, tuple[calibration_intervals.Line, calibration_intervals.Line]] = {}
    out = {}
    for name in names:
        statistic, side = calibration_intervals.STATISTICS[name]
        if side not in lines:
            low = calibration_intervals.line(c, side, "low", random)
            lines[side] = (low, low if side == "walk" else calibration_intervals.line(c, side, "high", random))
        out[name] = calibration_intervals.interval(statistic, c, *lines[side], resampling.level)
    return out
