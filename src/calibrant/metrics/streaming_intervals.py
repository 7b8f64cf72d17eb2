"""Intervals from a StreamState: what sums and the ladder can say, else none, with the reason.

Means (accuracy, NLL, Brier, gap): normal, from Σ and Σ². Binned errors: the same test inversion as in
memory, on cells made from the bins' sums. Ranking metrics: a Poisson bootstrap of the ladder. Items drawn
with Poisson(1) weights give each rung Poisson(g) correct and Poisson(e) incorrect items, so replicates need
the counts alone; rungs are merged into at most CELLS cells and the deviations from the value on the same
cells are what is used. The bound of the value is added to both ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor

from calibrant.functional import ranking
from calibrant.metrics import inversion
from calibrant.metrics.bca import wilson
from calibrant.metrics.calibration_test import outcome
from calibrant.metrics.classwise import classwise_interval
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.few_errors import MANY, NEWCOMBE, newcombe, too_few
from calibrant.metrics.gaps import Cells, noise, observed_gaps
from calibrant.metrics.regimes import caveat
from calibrant.metrics.streaming_values import StreamPanel
from calibrant.types import Estimate

CELLS = 4096
_FEW = 1000  # normal intervals from sums are for streams, which are long
_BATCH = 64


def _excess(good: Tensor, bad: Tensor) -> Tensor:
    return ranking.aurc(good, bad) - ranking.best_aurc(good, bad)


_RANKED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "auroc": ranking.auroc,
    "aupr_success": ranking.aupr_success,
    "aupr_error": ranking.aupr_error,
    "aurc": ranking.aurc,
    "eaurc": _excess,
    "fpr95": ranking.fpr_at_tpr,
}


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
    found = {**_means(panel, resampling), **_binned(panel, resampling), **_ranked(panel, resampling)}
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
    width = _cells(*s.width)
    size = panel.size
    mean = (panel.conf_good + panel.conf_bad) / size
    m = panel.mass
    inside = torch.bincount(panel.mass_bin, mean.square() * size, minlength=s.bins)
    mass = _cells(m.count[0], m.confidence[0], m.correct[0], inside)
    cell = _cell_of(size, 64).flip(0)  # least confident first, as the walk of KS goes
    walk = _cells(
        *(_merge(cell, v.flip(0)) for v in (size, panel.conf_good + panel.conf_bad, panel.good, mean.square() * size))
    )
    out: Found = {}
    lines: dict[tuple[str, str, str], inversion.Line] = {}
    for name, (statistic, side) in inversion.STATISTICS.items():
        kind, cells = {"ece_mass": ("mass", mass), "ks": ("walk", walk)}.get(name, ("width", width))
        drawn = noise(len(cells.count), resampling.replicates, resampling.seed)
        for end in ("low", "high"):
            if (kind, side, end) not in lines:
                lines[kind, side, end] = inversion.line(cells, side, end, drawn)
        span = inversion.interval(
            statistic, cells, lines[kind, side, "low"], lines[kind, side, "high"], resampling.level
        )
        out[name] = (span, "test inversion on the bins' sums")
    out["ece_debiased"] = out["ece"]
    if s.classwise is not None:
        out["ece_classwise"] = (classwise_interval(s.classwise, s.n, resampling.level), "test inversion on cell sums")
    return out


def calibration_test(panel: StreamPanel, resampling: Resampling) -> dict[str, Any]:
    """The test of calibration by ECE, simulated on the bins' sums (in memory it is simulated item by item)."""
    width = _cells(*panel.state.width)
    drawn = noise(len(width.count), resampling.replicates, resampling.seed + 1)
    simulated = observed_gaps(width, torch.zeros(1, len(width.count), dtype=torch.float64), drawn)[0].abs().sum(-1)
    observed = float(panel.width.gap.abs().sum())
    return outcome(observed, simulated)


def _cells(count: Tensor, confidence: Tensor, correct: Tensor, square: Tensor) -> Cells:
    keep = count > 0
    n, mean = count[keep], confidence[keep] / count[keep]
    return Cells(int(count.sum()), n, mean, correct[keep] / n, (square[keep] / n - mean * mean).clamp_min(0))


def _cell_of(size: Tensor, cells: int) -> Tensor:
    """Cell of each rung, about n/cells items each, numbered from 0."""
    start = torch.cumsum(size, 0) - size
    slot = (start * cells / size.sum()).floor().long()
    cell: Tensor = torch.unique_consecutive(slot, return_inverse=True)[1]
    return cell


def _merge(cell: Tensor, values: Tensor) -> Tensor:
    dense = torch.unique_consecutive(cell, return_inverse=True)[1]
    return torch.zeros(int(dense[-1]) + 1, dtype=torch.float64).index_add_(0, dense, values)


def _ranked(panel: StreamPanel, resampling: Resampling) -> Found:
    errors, correct = int(panel.bad.sum()), int(panel.good.sum())
    if min(errors, correct) == 0:
        return {}
    cell = _cell_of(panel.size, CELLS)
    good, bad = _merge(cell, panel.good), _merge(cell, panel.bad)
    generator = torch.Generator().manual_seed(resampling.seed)
    drawn: dict[str, list[Tensor]] = {name: [] for name in _RANKED}
    for start in range(0, resampling.replicates, _BATCH):
        rows = min(_BATCH, resampling.replicates - start)
        g = torch.poisson(good.expand(rows, -1), generator=generator)
        b = torch.poisson(bad.expand(rows, -1), generator=generator)
        for name, compute in _RANKED.items():
            drawn[name].append(compute(g, b))
    tail = (1 - resampling.level) / 2
    at = torch.tensor([tail, 1 - tail], dtype=torch.float64)
    out: Found = {}
    for name, compute in _RANKED.items():
        plain = float(compute(good[None], bad[None]))
        exact = float(compute(panel.good[None], panel.bad[None]))
        low, high = (exact - plain + torch.cat(drawn[name]).quantile(at)).tolist()
        out[name] = ((low, high), "Poisson bootstrap of the ladder")
        if name == "auroc" and min(errors, correct) < MANY:
            out[name] = (newcombe(exact, errors, correct, resampling.level), NEWCOMBE)
    return out
