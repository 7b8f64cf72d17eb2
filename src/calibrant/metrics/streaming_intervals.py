"""Intervals from a StreamState: what sums and the ladder can say, else none, with the reason.

Means (accuracy, NLL, Brier, gap): normal, from Σ and Σ². Binned errors: the same test inversion as in
memory, on cells made from the bins' sums. Ranking metrics: the same bootstrap of cells as in memory, of the ladder's
rungs. The bound of the value is added to both ends.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

from calibrant.metrics import METRICS, calibration_intervals
from calibrant.metrics.bca import NEWCOMBE, newcombe, wilson
from calibrant.metrics.calibration_cells import from_sums, noise
from calibrant.metrics.caveats import MANY, caveat, too_few
from calibrant.metrics.cells import with_bca
from calibrant.metrics.classwise import classwise_interval
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.streaming_values import StreamPanel
from calibrant.metrics.table import of_runs
from calibrant.types import Estimate

_FEW = 1000  # normal intervals from sums are for streams, which are long


def intervals(
    panel: StreamPanel, estimates: dict[str, Estimate], bounds: dict[str, float], resampling: Resampling
) -> dict[str, Estimate]:
    """The same estimates with their intervals, or with the reason why there is none."""
    state = panel.state
    if state.grouped:
        return {
            n: _without(e, "items of a group must be resampled together: not from a stream")
            for n, e in estimates.items()
        }
    if state.n < _FEW:
        return {
            n: _without(e, f"intervals from sums need {_FEW} items or more, this stream has {state.n}")
            for n, e in estimates.items()
        }
    rare = int(min(panel.good.sum(), panel.bad.sum()))
    found = {**_means(panel, resampling), **_binned(panel, resampling), **_ranked(panel, estimates, resampling)}
    out = {}
    for name, e in estimates.items():
        if e.value is None:
            out[name] = e
        elif (reason := too_few(name, rare, drawn=False)) is not None:
            out[name] = _without(e, reason)
        elif name not in found:
            out[name] = _without(e, "no interval from a stream")
        else:
            (low, high), method = found[name]
            slack = bounds.get(name, 0.0)
            out[name] = caveat(name, Estimate(e.value, low - slack, high + slack, method=method), rare)
    return out


def _without(e: Estimate, reason: str) -> Estimate:
    return e if e.value is None else Estimate(e.value, reason=reason)


Found = dict[str, tuple[tuple[float, float], str]]


def _means(panel: StreamPanel, resampling: Resampling) -> Found:
    s, z = panel.state, NormalDist().inv_cdf((1 + resampling.level) / 2)
    out: Found = {}
    moments = {"accuracy": (s.hits, s.hits), "gap": s.signed.tolist()}
    if s.k is not None:
        moments |= {"nll": s.nll.tolist(), "brier": s.brier.tolist()}
    for name, (total, square) in moments.items():
        mean = total / s.n
        half = z * math.sqrt(max(square / s.n - mean * mean, 0.0) / (s.n - 1))
        low, high = mean - half, mean + half
        if name == "accuracy":
            low, high = wilson(mean, s.n, resampling.level)
        out[name] = ((low, high), "Wilson" if name == "accuracy" else "normal, from sums")
    return out


def _binned(panel: StreamPanel, resampling: Resampling) -> Found:
    s = panel.state
    width = panel.width_cells
    size = panel.size
    mean = (panel.conf_good + panel.conf_bad) / size
    m = panel.mass
    inside = torch.bincount(panel.mass_bin, mean.square() * size, minlength=s.bins)
    mass = from_sums(m.count[0], m.confidence[0], m.correct[0], inside)
    cell = _cell_of(size, 64).flip(0)  # least confident first, as the walk of KS goes
    walk = from_sums(
        *(_merge(cell, v.flip(0)) for v in (size, panel.conf_good + panel.conf_bad, panel.good, mean.square() * size))
    )
    out: Found = {}
    lines: dict[tuple[str, str, str], calibration_intervals.Line] = {}
    for name, (statistic, side) in calibration_intervals.STATISTICS.items():
        kind, cells = {"ece_mass": ("mass", mass), "ks": ("walk", walk)}.get(name, ("width", width))
        drawn = noise(len(cells.count), resampling.replicates, resampling.seed)
        for end in ("low", "high"):
            if (kind, side, end) not in lines:
                lines[kind, side, end] = calibration_intervals.line(cells, side, end, drawn)
        span = calibration_intervals.interval(
            statistic, cells, lines[kind, side, "low"], lines[kind, side, "high"], resampling.level
        )
        out[name] = (span, "test inversion on the bins' sums")
    out["ece_debiased"] = out["ece"]
    if s.classwise is not None:
        out["ece_classwise"] = (classwise_interval(s.classwise, s.n, resampling.level), "test inversion on cell sums")
    return out


def _cell_of(size: Tensor, cells: int) -> Tensor:
    """Cell of each rung, about n/cells items each, numbered from 0."""
    start = torch.cumsum(size, 0) - size
    slot = (start * cells / size.sum()).floor().long()
    cell: Tensor = torch.unique_consecutive(slot, return_inverse=True)[1]
    return cell


def _merge(cell: Tensor, values: Tensor) -> Tensor:
    dense = torch.unique_consecutive(cell, return_inverse=True)[1]
    return torch.zeros(int(dense[-1]) + 1, dtype=torch.float64).index_add_(0, dense, values)


def _ranked(panel: StreamPanel, points: dict[str, Estimate], resampling: Resampling) -> Found:
    wanted = {n: e for n, e in points.items() if METRICS[n].family == "refinement" and e.value is not None}
    functions = of_runs([METRICS[n] for n in wanted])
    drawn = with_bca(wanted, functions, panel.good, panel.bad, resampling, method="BCa bootstrap of the ladder")
    out: Found = {
        n: ((e.low, e.high), str(e.method)) for n, e in drawn.items() if e.low is not None and e.high is not None
    }
    errors, correct = int(panel.bad.sum()), int(panel.good.sum())
    if "auroc" in wanted and min(errors, correct) < MANY:
        value = wanted["auroc"].value
        assert value is not None
        out["auroc"] = (newcombe(value, errors, correct, resampling.level), NEWCOMBE)
    return out
