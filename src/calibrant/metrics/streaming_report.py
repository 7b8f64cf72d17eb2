"""StreamState → Report: the same record as in memory, with the bound of each value beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from calibrant.metrics.calibration_test import calibration_test
from calibrant.metrics.conventions import Resampling, conventions
from calibrant.metrics.evaluate import choose
from calibrant.metrics.intervals import with_intervals
from calibrant.metrics.streaming import StreamState
from calibrant.metrics.streaming_panel import BOUNDS, StreamPanel, streamed
from calibrant.metrics.table import Metric
from calibrant.types import Estimate, Report

FEW = 1000
"""Items below which a stream has no intervals: its cells are those of sums."""


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
    """`exact` holds values from the external sort; they replace the streamed ones and have bound 0."""
    chosen, panel = choose(metrics), StreamPanel(state)
    estimates = {m.name: streamed(m, panel) for m in chosen}
    bounds = {n: BOUNDS[n](panel) if n in BOUNDS else 0.0 for n, e in estimates.items() if e.value is not None}
    for name in bounds.keys() & (exact or {}).keys():
        estimates[name], bounds[name] = replace(estimates[name], value=(exact or {})[name]), 0.0
    described: dict[str, Any] | None = None
    extras: dict[str, Any] = {"stream": {"bounds": bounds, "exact": exact is not None}}
    if resampling is not None:
        estimates = _with_intervals(panel, chosen, estimates, bounds, resampling)
        described = resampling.describe("items")
        if not state.grouped:
            extras["calibration_test"] = calibration_test(panel.width_cells, resampling)
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
    """The intervals of the cells, widened by the bound of each value; or the reason why there is none."""
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
    """'streamed: auroc ± 2e-07, …' for people; None for a report that was not streamed."""
    stream = found.extras.get("stream")
    if stream is None:
        return None
    loose = {name: bound for name, bound in stream["bounds"].items() if bound > 0}
    if not loose:
        return "streamed in one pass; every value is exact"
    told = ", ".join(f"{name} ± {bound:.1e}" for name, bound in loose.items())
    return f"streamed in one pass; exact but for {told} at most (--exact sorts on disk)"
