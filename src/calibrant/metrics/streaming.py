"""A state that is the sum of its parts: what a panel of metrics needs of any number of items, at fixed size.

Additive metrics are kept as sums. For the rest (ranking, KS, equal-mass bins) items are counted on a
*ladder*: rungs over the ordered bits of t = −log(1 − confidence), a float64 whose exponent and 14 leading
mantissa bits are the rung, so that a rung spans a relative 6.1e-5 of t, from 2⁻³⁴ to 2¹⁰. What falling
on one rung hides is bounded, metric by metric, in `streaming_panel`.

    state(whole) = state(part 1) + state(part 2) + …
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.binning import equal_width
from calibrant.functional.scores import Classwise, Scores
from calibrant.metrics import METRICS, proper
from calibrant.metrics.table import Column, Mean

MANTISSA = 14
_SHIFT = 52 - MANTISSA
_LOWEST, _HIGHEST = -34, 10  # powers of two of t at the ends of the ladder; what lies beyond shares the end rung
_BASE = (1023 + _LOWEST) << MANTISSA
RUNGS = (_HIGHEST - _LOWEST) << MANTISSA


MEANS: dict[str, Column] = {
    name: metric.compute.column for name, metric in METRICS.items() if isinstance(metric.compute, Mean)
}
"""The metrics that are means of a column."""


@dataclass(frozen=True)
class StreamState:
    """Sums over items. Two states of the same kind add; nothing in them grows with N."""

    k: int | None
    bins: int
    about: str
    n: int
    moments: (
        Tensor  # [means, 3]: Σ, Σ², Σ³ of each column of MEANS; NLL over the labels that were not called impossible
    )
    impossible: int  # labels whose probability was 0
    width: Tensor  # [4, bins]: count, Σ confidence, Σ correct, Σ confidence²
    ladder: Tensor  # [4, RUNGS]: correct, incorrect, Σ confidence of each; most confident last
    classwise: Classwise | None
    grouped: bool

    def __add__(self, other: StreamState) -> StreamState:
        if (self.k, self.bins, self.about) != (other.k, other.bins, other.about):
            raise InputError(f"cannot join predictions of {self.k} and of {other.k} classes into one report")
        cells = None
        if self.classwise is not None and other.classwise is not None:
            cells = self.classwise + other.classwise
        return replace(
            self,
            n=self.n + other.n,
            moments=self.moments + other.moments,
            impossible=self.impossible + other.impossible,
            width=self.width + other.width,
            ladder=self.ladder + other.ladder,
            classwise=cells,
            grouped=self.grouped or other.grouped,
        )


def rung(log_error: Tensor) -> Tensor:
    """Index in [0, RUNGS) of each log(1 − confidence): monotone, more confident is higher."""
    bits = (-log_error.double()).view(torch.int64) >> _SHIFT  # −0.0 has the sign bit: negative, so the lowest
    return (bits - _BASE).clamp_(0, RUNGS - 1)


def floor_of(rungs: Tensor) -> Tensor:
    """Smallest t of each rung (0 for the lowest)."""
    t = ((rungs + _BASE) << _SHIFT).view(torch.float64)
    return torch.where(rungs <= 0, 0.0, t)


def state(scores: Scores) -> StreamState:
    """The state of these items."""
    correct, confidence = scores.correct.double(), scores.confidence
    at = equal_width(confidence, scores.bins)
    step = rung(scores.log_error)
    hit = scores.correct
    impossible = 0 if scores.log_p_label is None else int(torch.isneginf(scores.log_p_label).sum())
    return StreamState(
        k=scores.k,
        bins=scores.bins,
        about=scores.about,
        n=scores.n,
        moments=torch.stack([_moments(column, scores) for column in MEANS.values()]),
        impossible=impossible,
        width=torch.stack([_sum(at, w, scores.bins) for w in (None, confidence, correct, confidence.square())]),
        ladder=torch.stack(
            [
                _sum(step[hit], None, RUNGS),
                _sum(step[~hit], None, RUNGS),
                _sum(step[hit], confidence[hit], RUNGS),
                _sum(step[~hit], confidence[~hit], RUNGS),
            ]
        ),
        classwise=scores.classwise,
        grouped=scores.group is not None,
    )


def _moments(column: Column, scores: Scores) -> Tensor:
    if scores.log_p_label is None and column in (proper.nll, proper.brier):
        return torch.zeros(3, dtype=torch.float64)  # a top-1 file does not say
    x = column(scores)
    x = x[torch.isfinite(x)]
    return torch.stack([x.sum(), x.square().sum(), x.pow(3).sum()])


def _sum(index: Tensor, weights: Tensor | None, size: int) -> Tensor:
    return torch.bincount(index, weights, minlength=size).double()
