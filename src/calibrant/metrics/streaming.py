"""A state that is the sum of its parts: what a panel of metrics needs of any number of items, at fixed size.

Additive metrics are kept as sums. For the rest (ranking, KS, equal-mass bins) items are counted on a
*ladder*: rungs over the ordered bits of t = −log(1 − confidence), a float64 whose exponent and 14 leading
mantissa bits are the rung, so that a rung spans a relative 6.1e-5 of t, from 2⁻³⁴ to 2¹⁰. What falling
on one rung hides is bounded, metric by metric, in `streaming_values`.

    state(whole) = state(part 1) + state(part 2) + …
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.binning import equal_width
from calibrant.functional.scores import Classwise, Scores

MANTISSA = 14
_SHIFT = 52 - MANTISSA
_LOWEST, _HIGHEST = -34, 10  # powers of two of t at the ends of the ladder; what lies beyond shares the end rung
_BASE = (1023 + _LOWEST) << MANTISSA
RUNGS = (_HIGHEST - _LOWEST) << MANTISSA


@dataclass(frozen=True)
class StreamState:
    """Sums over items. Two states of the same kind add; nothing in them grows with N."""

    k: int | None
    bins: int
    about: str
    n: int
    hits: float  # Σ [predicted = label]
    nll: Tensor  # Σ and Σ² of −log p_label over the labels that were not called impossible
    impossible: int  # labels whose probability was 0
    brier: Tensor  # Σ, Σ²
    signed: Tensor  # Σ, Σ² of confidence − correct
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
            hits=self.hits + other.hits,
            nll=self.nll + other.nll,
            impossible=self.impossible + other.impossible,
            brier=self.brier + other.brier,
            signed=self.signed + other.signed,
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
    nll, impossible = torch.zeros(2, dtype=torch.float64), 0
    if scores.log_p_label is not None:
        possible = ~torch.isneginf(scores.log_p_label)
        impossible = scores.n - int(possible.sum())
        nll = _moments(-scores.log_p_label if impossible == 0 else -scores.log_p_label[possible])
    return StreamState(
        k=scores.k,
        bins=scores.bins,
        about=scores.about,
        n=scores.n,
        hits=float((scores.predicted == scores.labels).sum()),
        nll=nll,
        impossible=impossible,
        brier=torch.zeros(2, dtype=torch.float64) if scores.brier is None else _moments(scores.brier),
        signed=_moments(confidence - correct),
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


def _moments(values: Tensor) -> Tensor:
    return torch.stack([values.sum(), values.square().sum()])


def _sum(index: Tensor, weights: Tensor | None, size: int) -> Tensor:
    return torch.bincount(index, weights, minlength=size).double()
