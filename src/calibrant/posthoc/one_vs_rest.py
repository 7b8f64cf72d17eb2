"""One map from K binary ones: class k against the rest, then normalised (Zadrozny and Elkan 2002).

log p_k and log(1 − p_k) are both computed with all their digits. An impossible class (−inf) stays impossible.
For K = 2 the two columns are one problem seen from both sides, and normalising changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.chunks import CHUNK
from calibrant.posthoc.toplabel import Top, top_of, top_of_logits
from calibrant.types import Predictions

Kind = Literal["top", "one_vs_rest"]
"""What a binary method is fitted to: "the top label is right", or each class against the rest."""

DEEPEST = 1e5
"""Log-probabilities and log-odds are clipped here: far beyond those of any network, yet safe to square and sum."""
CERTAIN = 69.07755278982137
"""An infinite log-odds (from exactly 0 or 1 in a file) counts as this, the log-odds of the floor 1e-30."""


def kind_of(kind: Kind | None, p: Predictions, name: str) -> Kind:
    """The kind that was asked for. By default it is every class against the rest, or "top" for a top-1 set."""
    if kind == "one_vs_rest" and p.logits is None:
        raise InputError(f"{name} with kind='one_vs_rest' needs logits or probabilities, not a top-1 file")
    return kind or ("top" if p.logits is None else "one_vs_rest")


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
    """The odds of every class against the rest, [..., N, K]."""
    log_p = torch.log_softmax(logits, -1)
    top = top_of_logits(logits)
    log_rest = torch.log1p(-log_p.exp())
    log_rest = log_rest.scatter(-1, top.predicted[..., None], top.log_error[..., None])
    return Odds(log_p.clamp_min(-DEEPEST), log_rest.clamp(-DEEPEST, 0.0))


def top_odds(top: Top) -> Odds:
    """The odds of the predicted class."""
    log_p = torch.log(top.confidence)
    log_p = log_p.masked_fill(torch.isneginf(log_p), -CERTAIN)
    log_rest = top.log_error.masked_fill(torch.isneginf(top.log_error), -CERTAIN)
    return Odds(log_p, log_rest.clamp(-DEEPEST, 0.0))


def joined(log_q: Tensor, logits: Tensor) -> Tensor:
    """Normalise K one-vs-rest log-probabilities. Impossible classes stay impossible."""
    return torch.log_softmax(log_q.masked_fill(torch.isneginf(logits), -torch.inf), -1)


class Columns(NamedTuple):
    """Some binary problems, [N, C] each: the odds, 1 if the event happened, and 1 if the entry is to be fitted.

    An impossible class, and the only possible class of an item, are not fitted, because no map can change them.
    """

    odds: Odds
    happened: Tensor
    counted: Tensor


def binary_problems(p: Predictions, kind: Kind) -> Iterator[Columns]:
    """Yield the binary problems, a few columns at a time.

    "top" has one column: the predicted label is right. "one_vs_rest" has one column per class.
    """
    labels = p.labels.cpu()
    if kind == "top":
        top = top_of(p)
        o = top_odds(top)
        happened = (top.predicted.cpu() == labels).double()[:, None]
        yield Columns(Odds(o.log_p.cpu()[:, None], o.log_rest.cpu()[:, None]), happened, torch.ones_like(happened))
        return
    assert p.logits is not None
    z = p.logits.double().cpu()
    o, possible = odds(z), ~torch.isneginf(z)
    counted = possible & (possible.sum(-1, keepdim=True) > 1)
    n, k = o.log_p.shape
    width = max(1, 4 * CHUNK // n)  # small enough that a few N × width tensors stay in memory
    for start in range(0, k, width):
        at = slice(start, start + width)
        part = Odds(o.log_p[:, at], o.log_rest[:, at])
        yield Columns(part, (labels[:, None] == torch.arange(k)[at]).double(), counted[:, at].double())


def scores_and_hits(p: Predictions, kind: Kind) -> Iterator[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Yield the log-odds and whether the event happened, one column at a time."""
    for columns in binary_problems(p, kind):
        yield from zip(columns.odds.score.T.contiguous().numpy(), columns.happened.T.numpy() > 0, strict=True)


def probabilities_and_hits(p: Predictions, kind: Kind) -> Iterator[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Yield the probability and whether the event happened, one column at a time."""
    labels = p.labels.cpu().numpy()
    if kind == "top":
        top = top_of(p)
        yield top.confidence.cpu().numpy(), top.predicted.cpu().numpy() == labels
        return
    assert p.logits is not None
    probability = torch.softmax(p.logits.double(), -1).cpu()
    for start in range(0, probability.shape[1], 64):  # columns are strided, so a block of them is copied at a time
        for i, column in enumerate(probability[:, start : start + 64].T.contiguous().numpy()):
            yield column, labels == start + i
