"""One map from K binary ones: class k against the rest, then normalised (Zadrozny and Elkan 2002).

log p_k and log(1 − p_k) are both computed with all their digits; a class that is impossible (−inf) stays so.
For K = 2 the two columns are one problem seen from both sides, and normalising changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.chunks import CHUNK
from calibrant.posthoc.toplabel import Top, top_of, top_of_logits
from calibrant.types import Predictions

Kind = Literal["top", "one_vs_rest"]
"""What a binary method is fitted to: the confidence of the top label, or each class against the rest."""

DEEPEST = 1e5
"""Log-probabilities and log-odds are clipped here: far beyond those of any network, yet safe to square and sum."""
CERTAIN = 69.07755278982137
"""An infinite log-odds (from exactly 0 or 1 in a file) counts as this, the log-odds of the floor 1e-30."""


def kind_of(kind: Kind | None, p: Predictions, name: str) -> Kind:
    """The kind that was asked for; by default every class against the rest, where there are logits."""
    if kind == "one_vs_rest":
        every_class_of(p, name)
    return kind or ("top" if p.logits is None else "one_vs_rest")


def every_class_of(p: Predictions, name: str) -> Tensor:
    """The logits, which only a method of every class needs; a top-1 file has none."""
    if p.logits is None:
        raise InputError(f"{name} with kind='one_vs_rest' needs logits or probabilities, not a top-1 file")
    return p.logits


@dataclass(frozen=True)
class Odds:
    """log p and log(1 − p) of each entry."""

    log_p: Tensor
    log_rest: Tensor

    @property
    def score(self) -> Tensor:
        """Log-odds."""
        return self.log_p - self.log_rest


def odds(logits: Tensor) -> Odds:
    """Of every class against the rest, [..., N, K]."""
    log_p = torch.log_softmax(logits, -1)
    top = top_of_logits(logits)
    log_rest = torch.log1p(-log_p.exp())
    log_rest = log_rest.scatter(-1, top.predicted[..., None], top.log_error[..., None])
    return Odds(log_p.clamp_min(-DEEPEST), log_rest.clamp(-DEEPEST, 0.0))


def top_odds(top: Top) -> Odds:
    """Of the predicted class."""
    log_p = torch.log(top.confidence)
    log_p = log_p.masked_fill(torch.isneginf(log_p), -CERTAIN)
    log_rest = top.log_error.masked_fill(torch.isneginf(top.log_error), -CERTAIN)
    return Odds(log_p, log_rest.clamp(-DEEPEST, 0.0))


def joined(log_q: Tensor, logits: Tensor) -> Tensor:
    """Normalised log-probabilities from K one-vs-rest ones; impossible classes stay impossible."""
    return torch.log_softmax(log_q.masked_fill(torch.isneginf(logits), -torch.inf), -1)


def binary_problems(p: Predictions, kind: Kind) -> Iterator[tuple[Odds, Tensor]]:
    """(odds [N, C], 1 where the event happened [N, C]), in groups of columns.

    "top" has one column: the predicted label is right. "one_vs_rest" has one column per class.
    """
    labels = p.labels.cpu()
    if kind == "top":
        top = top_of(p)
        o = top_odds(top)
        yield Odds(o.log_p.cpu()[:, None], o.log_rest.cpu()[:, None]), (top.predicted.cpu() == labels).double()[:, None]
        return
    assert p.logits is not None
    o = odds(p.logits.double().cpu())
    n, k = o.log_p.shape
    width = max(1, 4 * CHUNK // n)  # small enough that a few N × width tensors stay in memory
    for start in range(0, k, width):
        classes = torch.arange(start, min(start + width, k))
        part = Odds(o.log_p[:, start : start + width], o.log_rest[:, start : start + width])
        yield part, (labels[:, None] == classes).double()


def scores_and_hits(p: Predictions, kind: Kind) -> Iterator[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """The log-odds and whether the event happened, one column at a time."""
    for part, happened in binary_problems(p, kind):
        yield from zip(part.score.T.contiguous().numpy(), happened.T.numpy() > 0, strict=True)
