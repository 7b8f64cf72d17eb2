"""StreamState → Report: the same record as in memory, with the bound of each value beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from calibrant.metrics.calibration_test import calibration_test
from calibrant.metrics.conventions import Resampling, conventions
from calibrant.metrics.evaluate import choose
from calibrant.metrics.streaming import StreamState
from calibrant.metrics.streaming_intervals import intervals
from calibrant.metrics.streaming_values import StreamPanel, value
from calibrant.types import Report


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
    chosen = choose(metrics)
    panel = StreamPanel(state)
    estimates, bounds = {}, {}
    for m in chosen:
        estimates[m.name], bound = value(m.name, panel)
        if bound is not None:
            bounds[m.name] = bound
            if exact is not None and m.name in exact:
                estimates[m.name], bounds[m.name] = replace(estimates[m.name], value=exact[m.name]), 0.0
    described: dict[str, Any] | None = None
    extras: dict[str, Any] = {"stream": {"bounds": bounds, "exact": exact is not None}}
    if resampling is not None:
        estimates = intervals(panel, estimates, bounds, resampling)
        described = {**resampling.describe("items"), "kind": "from the sums of a stream; each says how"}
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
