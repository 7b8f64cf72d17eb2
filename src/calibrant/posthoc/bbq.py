"""BBQ: Bayesian binning into quantiles (Naeini, Cooper and Hauskrecht 2015) averages over numbers of bins.

Equal-mass binnings with B from N^(1/3)/10 to 10 N^(1/3) bins are averaged. The weight of a binning is its marginal
likelihood with a Beta(α_b, β_b) prior in every bin, where α_b = N'/B · p_b, β_b = N'/B · (1 − p_b), p_b is the middle
of the bin, and N' = 2:

    P(D | M) = Π_b  B(m_b + α_b, n_b − m_b + β_b) / B(α_b, β_b),       q_b = (m_b + α_b) / (n_b + N'/B)

The average of step functions is a step function, and the map keeps only that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.posthoc.calibrator import Calibrator, certified
from calibrant.posthoc.map import FittedMap
from calibrant.posthoc.one_vs_rest import Kind, joined, kind_of, odds, scores_and_hits, top_odds
from calibrant.posthoc.step_functions import Floats, Step, compressed, grouped, packed, step_function
from calibrant.posthoc.toplabel import Top, TopLabelMap
from calibrant.types import Predictions

STRENGTH = 2.0
"""N': the prior counts as this many items, divided among the bins."""


@dataclass(frozen=True, eq=False)
class BbqMap(TopLabelMap):
    """The averaged step function of the top label's log-odds."""

    edges: Tensor
    values: Tensor
    method: ClassVar[str] = "bbq"

    def confidence(self, top: Top) -> Tensor:
        return step_function(top_odds(top).score, self.edges, self.values)


@dataclass(frozen=True, eq=False)
class BbqRestMap(FittedMap):
    """One averaged step function for each class against the rest; the rows are normalised."""

    edges: Tensor
    values: Tensor
    offset: Tensor
    method: ClassVar[str] = "bbq_rest"
    keeps_label: ClassVar[bool] = False

    @property
    def k(self) -> int | None:
        return len(self.offset) - 1

    def transform(self, logits: Tensor) -> Tensor:
        q = step_function(odds(logits).score, self.edges, self.values, self.offset)
        return joined(torch.log(q), logits)

    def summary(self) -> dict[str, Any]:
        return {"steps": len(self.values), "classes": self.k}


@dataclass(frozen=True)
class Bbq(Calibrator):
    """Bayesian binning into quantiles: all bin counts at once (Naeini 2015)."""

    kind: Kind = "top"
    name: ClassVar[str] = "bbq"
    map: ClassVar[type[FittedMap]] = BbqMap
    maps: ClassVar[tuple[type[FittedMap], ...]] = (BbqRestMap,)
    takes_top1: ClassVar[bool] = True
    cost: ClassVar[int] = 3  # a loop over the classes
    candidates: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"kind": "one_vs_rest"})

    def solve(self, p: Predictions) -> FittedMap:
        self.need(p.n, 2, "one item makes one bin")
        kind = kind_of(self.kind, p, self.name)
        found = [averaged(score, hit) for score, hit in scores_and_hits(p, kind)]
        record = certified({"kind": kind, "mean_bins": float(np.mean([bins for _, bins in found]))})
        edges, values, offset = packed([step for step, _ in found])
        if kind == "top":
            return BbqMap(edges, values, record=record)
        return BbqRestMap(edges, values, offset, record=record)


def bin_counts(n: int) -> range:
    """The numbers of bins that are averaged."""
    root = n ** (1 / 3)
    return range(max(1, int(root / 10)), min(n, int(np.ceil(10 * root))) + 1)


def averaged(score: Floats, hit: NDArray[np.bool_]) -> tuple[Step, float]:
    """Return the averaged step function and the posterior mean of the number of bins."""
    value, size, hits = grouped(score, hit, 1.0)
    middle = np.cumsum(size) - size / 2  # ties go together to the bin of their middle rank, as in all our bins
    between = (value[1:] + value[:-1]) / 2
    total, total_hits = (np.concatenate([[0.0], np.cumsum(c)]) for c in (size, hits))
    evidence, rates, starts = [], [], []
    for bins in bin_counts(len(score)):
        which = np.minimum((middle * bins / len(score)).astype(np.int64), bins - 1)
        start = np.concatenate([[0], np.flatnonzero(np.diff(which)) + 1])
        log_evidence, rate = _binning(start, total, total_hits, between)
        evidence.append(log_evidence)
        rates.append(rate)
        starts.append(start)
    log_weight = np.array(evidence)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    out = np.zeros(len(value))
    for w, rate, start in zip(weight, rates, starts, strict=True):
        if w > 1e-12:
            out += w * np.repeat(rate, np.diff(np.append(start, len(value))))
    sizes = np.array([len(s) for s in starts])
    return compressed(between, out), float(weight @ sizes)


def _binning(start: NDArray[np.int64], total: Floats, hits: Floats, between: Floats) -> tuple[float, Floats]:
    """Return the log evidence and the rates of one binning, whose bins begin at the distinct scores `start`."""
    from scipy.special import betaln, expit

    stop = np.append(start[1:], len(total) - 1)
    n, m = total[stop] - total[start], hits[stop] - hits[start]
    edge = np.concatenate([[0.0], expit(between[start[1:] - 1]), [1.0]])
    prior = STRENGTH / len(start)
    alpha = prior * np.clip((edge[1:] + edge[:-1]) / 2, 1e-6, 1 - 1e-6)
    beta = prior - alpha
    evidence = float(np.sum(betaln(m + alpha, n - m + beta) - betaln(alpha, beta)))
    return evidence, (m + alpha) / (n + prior)
