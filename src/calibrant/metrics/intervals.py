"""A 95% interval for every metric, each by the method that covers (docs/coverage.md).

Proportions: Wilson. Calibration errors: inversion of a test (`calibration_intervals`, `classwise`). AUROC of few
errors: Newcombe. Other means: BCa in closed form. Rankings: BCa over a bootstrap of items, drawn as the cells that they
fall into. With groups, BCa over a bootstrap of groups. An interval that would be a guess is None, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calibrant.functional.binomial import wilson
from calibrant.metrics.bca import (
    NEWCOMBE,
    UNMOVED,
    acceleration,
    bca_of_mean,
    design_effect,
    influence,
    interval,
    newcombe,
)
from calibrant.metrics.bootstrap import bootstrap, with_bca
from calibrant.metrics.calibration import GapError, ece_classwise, estimated
from calibrant.metrics.calibration_intervals import invert
from calibrant.metrics.classwise_interval import classwise_interval
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.panel import Metric, Panel
from calibrant.metrics.proper import Mean
from calibrant.metrics.refinement import Ranked, Runs
from calibrant.types import Estimate, Report

INVERSION = "test inversion on simulated gaps"
UNKNOWN = "neither a mean, an error of gaps nor a ranking: no interval"

LEAST = {"auroc": 3, "aupr_success": 10, "aupr_error": 10, "aurc": 10, "eaurc": 10, "fpr95": 10}
"""With fewer errors (or fewer correct answers) there is no interval. AUROC's 3 are for Newcombe's interval."""
LEAST_DRAWN = 10
"""The same for any interval from a bootstrap."""
MANY = 50
"""From this many errors on, the bootstrap interval of AUROC covers and is shorter than Newcombe's."""


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
    gaps = gap_intervals(panel, known, resampling)
    rare, level = rare_outcomes(panel), resampling.level
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
            moves = low < high  # not if all groups are certain and right: the simulation has no noise
            out[name] = replace(e, low=low, high=high, method=INVERSION) if moves else replace(e, reason=UNMOVED)
        elif isinstance(m.compute, Mean | Ranked):
            drawn.append(m)
        else:
            out[name] = replace(e, reason=UNKNOWN)
    if drawn:
        out |= _bootstrapped(panel, drawn, points, resampling, f"BCa bootstrap over {unit}")
    return {name: caveat(name, e, rare) for name, e in out.items()}


def _accuracy(panel: Panel, point: Estimate, level: float) -> Estimate:
    assert point.value is not None
    n, method = float(panel.n), "Wilson"
    if panel.group is not None:
        n /= max(1.0, design_effect((panel.scores.predicted == panel.scores.labels).double(), panel.group))
        method = "Wilson, items counted by the design effect of groups"
    low, high = map(float, wilson(point.value * n, n, level))
    return replace(point, low=low, high=high, method=method)


def _auroc(panel: Panel, point: Estimate, level: float) -> Estimate:
    assert point.value is not None
    right, wrong = (int(c.sum()) for c in panel.runs)
    low, high = newcombe(point.value, wrong, right, level)
    return replace(point, low=low, high=high, method=NEWCOMBE)


def _mean(panel: Panel, mean: Mean, point: Estimate, level: float) -> Estimate:
    """The bootstrap interval of a mean of items, in closed form. (A mean over groups is a ratio, and is drawn.)"""
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
        ranked = {m.name: m.compute.of for m in metrics if isinstance(m.compute, Ranked)}

        def compute(good: Tensor, bad: Tensor) -> dict[str, Tensor]:
            runs = Runs(good, bad)
            return {name: of(runs) for name, of in ranked.items()}

        wanted = {name: points[name] for name in ranked}
        return with_bca(wanted, compute, good, bad, resampling, method=method)
    ((on_cells, replicates),) = bootstrap([panel], metrics, resampling.replicates, resampling.seed)
    order, sorted_panel = panel.merged_cells
    out = {}
    for m in metrics:
        accelerated = acceleration(influence(m, sorted_panel), panel.group[order])
        value, drawn = float(on_cells[m.name]), replicates[m.name]
        out[m.name] = interval(points[m.name], value, drawn, accelerated, resampling.level, method)
    return out


def gap_intervals(panel: Panel, metrics: Sequence[Metric], resampling: Resampling) -> dict[str, tuple[float, float]]:
    """The intervals of the metrics that are, or estimate, a function of gaps."""
    wanted = {m.name: error for m in metrics if (error := estimated(m)) is not None}
    found: dict[GapError, tuple[float, float]] = {}
    for kind in dict.fromkeys(error.cells for error in wanted.values()):
        errors = dict.fromkeys(error for error in wanted.values() if error.cells == kind)
        found |= invert(panel.cells(kind), errors, resampling)
    out = {name: found[error] for name, error in wanted.items()}
    if panel.classwise is not None and any(m.compute is ece_classwise for m in metrics):
        design = 1.0 if panel.group is None else max(1.0, design_effect(panel.signed, panel.group))
        out["ece_classwise"] = classwise_interval(panel.classwise, panel.n, resampling.level, design)
    return out


def rare_outcomes(panel: Panel) -> int:
    """The number of errors or of correct answers, whichever is smaller; with groups, of groups that hold one."""
    group = panel.group
    if group is None:
        return min(int(c.sum()) for c in panel.runs)
    return min(len(torch.unique(group[panel.scores.correct == kind])) for kind in (True, False))


def too_few(name: str, rare: int, *, drawn: bool) -> str | None:
    """Why this metric has no interval, or None where it has one. `drawn`: the interval would come from a bootstrap."""
    least = max(LEAST.get(name, 0), LEAST_DRAWN if drawn and name in LEAST else 0)
    return f"fewer than {least} errors or correct answers: no interval" if rare < least else None


@dataclass(frozen=True)
class Caveat:
    """A condition under which the intervals of some metrics miss the nominal coverage; `words` says how.

    `holds` is given the number of errors or of correct answers, whichever is smaller, and the estimate.
    """

    metrics: frozenset[str]
    holds: Callable[[int, Estimate], bool]
    words: str


FEW = f"fewer than {MANY} errors or correct answers"
SHORT = "may cover less than 90% (83% at the worst)"  # KS of 100 items with about 3 errors: docs/coverage_few.md

CAVEATS: tuple[Caveat, ...] = (
    Caveat(
        frozenset({"auroc"}),
        lambda rare, estimate: estimate.method == NEWCOMBE,
        "few errors: wide, may cover more than 99%",
    ),
    Caveat(
        frozenset({"fpr95"}),
        lambda rare, estimate: rare < MANY,
        "a share of few errors moves in steps: may cover more than 99%",
    ),
    Caveat(
        (frozenset(LEAST) - {"fpr95"})
        | {"nll", "brier", "gap", "ece", "ece_debiased", "ece_classwise", "ece_max", "ece_over", "oe", "ks"},
        lambda rare, estimate: estimate.method != NEWCOMBE and rare < MANY,
        f"{FEW}: {SHORT}",
    ),
    Caveat(
        frozenset({"ece", "ece_mass", "ece_l2", "ece_over", "ece_under", "oe", "ece_debiased", "ks"}),
        lambda rare, estimate: estimate.low == 0,
        "at the boundary 0: may cover more than 99%",
    ),
    Caveat(
        frozenset({"ece_classwise"}),
        lambda rare, estimate: True,
        "classes of an item taken to be as dependent as they can be: may cover more than 99%",
    ),
    Caveat(
        frozenset({"ece_max"}),
        lambda rare, estimate: True,
        "lower end valid for all bins at once: may cover more than 99%",
    ),
)
"""Taken from the coverage tables: a test checks that every cell outside 90–99% has a line here. The first line that
holds is used."""


def caveat(name: str, estimate: Estimate, rare: int) -> Estimate:
    """The estimate, with a note in its `method` if its interval is known to cover less or more than it says."""
    if estimate.low is None:
        return estimate
    words = next((r.words for r in CAVEATS if name in r.metrics and r.holds(rare, estimate)), None)
    return estimate if words is None else replace(estimate, method=f"{estimate.method}; {words}")


def caveats_line(report: Report, names: Sequence[str] | None = None) -> str | None:
    """A sentence that names the intervals of a report that are known to be too short; None if there are none."""
    short = [name for name in names or report if SHORT in (report[name].method or "")]
    return f"{FEW}: the intervals of {', '.join(short)} {SHORT}" if short else None
