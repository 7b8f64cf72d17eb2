"""`StreamState` → `Report`: the same report as in memory, with a rigorous bound on the error of each value.

The order of items on one rung of the ladder, and their ties, are unknown. For a metric that depends on them, the bound
is the worst that any order can do. All other metrics are exact sums.

    AUROC, AURC, FPR95   between 'errors first' and 'errors last' on every rung
    AUPR       the precision at the j-th of p positives on a rung with q negatives is in [(F+j)/(S+j+q), (F+p)/(S+p)];
               F items are found and S seen above the rung
    KS         inside a rung the walk may deviate from its ends by Σ|confidence − correct| of one sign
    ECE mass   only rungs across a boundary between bins can be split: 2 Σ|confidence − correct| there
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from calibrant.functional import ranking
from calibrant.metrics import refinement
from calibrant.metrics.calibration_intervals import calibration_test
from calibrant.metrics.conventions import Resampling, conventions
from calibrant.metrics.evaluate import chosen_metrics, point_estimates
from calibrant.metrics.intervals import with_intervals
from calibrant.metrics.panel import Metric
from calibrant.metrics.refinement import Runs
from calibrant.metrics.stream import StreamPanel, StreamState
from calibrant.types import Estimate, Report

FEW = 1000
"""A stream with fewer items has no intervals, because its cells are too coarse for so few."""
_CROWDED = 28.0  # from this t on, confidences of neighbouring rungs may be equal in float64


def report(
    state: StreamState,
    *,
    metrics: Sequence[str] | None = None,
    resampling: Resampling | None = None,
    split: str = "unknown",
    file: str | None = None,
    binary: bool = False,
    exact: Mapping[str, float] | None = None,
) -> Report:
    """The report of a stream. Values in `exact`, from the external sort, replace streamed ones with a bound of 0."""
    chosen, panel = chosen_metrics(metrics), StreamPanel(state)
    estimates = point_estimates(chosen, panel)
    bounds = {n: BOUNDS[n](panel) if n in BOUNDS else 0.0 for n, e in estimates.items() if e.value is not None}
    for name in bounds.keys() & (exact or {}).keys():
        estimates[name], bounds[name] = replace(estimates[name], value=(exact or {})[name]), 0.0
    described: dict[str, Any] | None = None
    extras: dict[str, Any] = {"stream": {"bounds": bounds, "exact": exact is not None}}
    if resampling is not None:
        estimates = _with_intervals(panel, chosen, estimates, bounds, resampling)
        described = resampling.describe("items")
        if not state.grouped:
            extras["calibration_test"] = calibration_test(panel.cells("width"), resampling)
    return Report(
        metrics=estimates,
        n=state.n,
        k=state.k,
        conventions={
            **conventions(bins=state.bins, about=state.about, binary=binary, split=split, interval=described),
            "streamed": "one pass, fixed memory" + ("; ranking by external sort" if exact is not None else ""),
        },
        file=file,
        extras=extras,
        percent=frozenset(m.name for m in chosen if m.percent),
    )


def _with_intervals(
    panel: StreamPanel,
    chosen: Sequence[Metric],
    points: Mapping[str, Estimate],
    bounds: Mapping[str, float],
    resampling: Resampling,
) -> dict[str, Estimate]:
    """The intervals from the cells, each widened by the bound of its value; or the reason why there are none."""
    reason = None
    if panel.state.grouped:
        reason = "items of a group must be resampled together: not from a stream"
    elif panel.n < FEW:
        reason = f"intervals from sums need {FEW} items or more, this stream has {panel.n}"
    if reason is not None:
        return {n: e if e.value is None else replace(e, reason=reason) for n, e in points.items()}
    out = with_intervals(panel, chosen, points, resampling)
    return {
        n: e if e.low is None or e.high is None else replace(e, low=e.low - bounds[n], high=e.high + bounds[n])
        for n, e in out.items()
    }


def bounds_line(found: Report) -> str | None:
    """A line for people, "streamed …: auroc ± 2e-07, …"; None for a report that was not streamed."""
    stream = found.extras.get("stream")
    if stream is None:
        return None
    loose = {name: bound for name, bound in stream["bounds"].items() if bound > 0}
    if not loose:
        return "streamed in one pass; every value is exact"
    told = ", ".join(f"{name} ± {bound:.1e}" for name, bound in loose.items())
    return f"streamed in one pass; exact but for {told} at most (--exact sorts on disk)"


def ranked(of: Callable[[Runs], Tensor], p: StreamPanel) -> float:
    """The bound for a metric that is monotone in the ranks of errors: on every rung, all errors first or all last."""
    none = torch.zeros_like(p.good)

    def cut(first: Tensor, second: Tensor) -> Tensor:
        return torch.stack([first, second], 1).reshape(1, -1)

    orders = Runs(cut(none, p.good), cut(p.bad, none)), Runs(cut(p.good, none), cut(none, p.bad))
    return max(abs(float(of(runs)) - float(of(p.runs))) for runs in orders)


def _average_precision(positive: Tensor, negative: Tensor) -> float:
    value = float(ranking.average_precision(positive[None], negative[None]))
    found = torch.cumsum(positive, 0) - positive
    seen = found + torch.cumsum(negative, 0) - negative
    best = positive * (found + positive) / (seen + positive).clamp_min(1)
    start = seen + negative  # the worst case is Σ_{j=1…p} (F + j)/(start + j), in closed form
    harmonic = torch.digamma(start + positive + 1) - torch.digamma(start + 1)
    worst = positive + (found - start) * harmonic
    total = positive.sum()
    return max(float(best.sum() / total) - value, value - float(worst.sum() / total), 0.0)


def _ks(p: StreamPanel) -> float:
    end = torch.cumsum(p.walk[0], 0)
    start = end - p.walk[0]
    worst = torch.maximum((start + p.too_high.flip(0) / p.n).abs(), (start - p.too_low.flip(0) / p.n).abs())
    return max(float(worst.max() - end.abs().max()), 0.0)


def _ece_mass(p: StreamPanel) -> float:
    n, bins = p.state.n, p.state.bins
    end = n - (torch.cumsum(p.size, 0) - p.size)
    crowded = p.t >= _CROWDED
    low = torch.where(crowded, n - (p.size * crowded).sum(), end - p.size)
    high = torch.where(crowded, torch.full_like(end, n), end)
    first = (low * bins / n).floor().clamp_max(bins - 1)
    last = (high * bins / n).ceil().sub(1).clamp_min(0)
    moves = torch.where(last > first, p.too_low + p.too_high, 0.0)
    gap = p.mass.gap[0] * n
    return _movable(moves, first.long(), last.long(), gap) * 2 / n


def _movable(moves: Tensor, first: Tensor, last: Tensor, gap: Tensor) -> float:
    """The gaps that may move between bins and change the error. Where two neighbouring bins keep gaps of the same sign
    whatever moves, their |gap| + |gap| does not change."""
    loose = torch.zeros_like(gap)
    for at in (first, last):
        loose.index_add_(0, at, moves)
    sign = torch.where(gap.abs() > loose, gap.sign(), 0.0)
    same = (last - first == 1) & (sign[first] * sign[last] > 0)
    return float(moves[~same].sum())


BOUNDS: dict[str, Callable[[StreamPanel], float]] = {
    "ece_mass": _ece_mass,
    "ks": _ks,
    "auroc": partial(ranked, refinement.auroc),
    "aupr_success": lambda p: _average_precision(p.good, p.bad),
    "aupr_error": lambda p: _average_precision(p.bad.flip(0), p.good.flip(0)),
    "aurc": partial(ranked, refinement.aurc),
    "eaurc": partial(ranked, refinement.eaurc),
    "fpr95": partial(ranked, refinement.fpr95),
}
"""Metric → how far its value from a stream can be from the exact value; 0 for all other metrics, which are sums."""
