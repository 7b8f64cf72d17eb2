"""The one pass: logits and labels → what every metric needs of an item.

`reduce` reads the logits once, a chunk at a time, in float64 whatever the input, and never holds a
copy beyond that chunk. Metrics, bootstrap, streaming and top-1 files all start from its `Scores`.

With m = max_k z_k, a its index and R = Σ_{j≠a} exp(z_j − m):

    p_max = 1/(1+R),   log(1 − p_max) = log R − log(1+R),   log p_y = z_y − m − log(1+R)

which keeps the digits of 1 − p_max that 1.0 has lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calibrant.functional.binning import equal_width
from calibrant.functional.pooling import Disagreement, disagreement, pool
from calibrant.types import Predictions

CHUNK = 1 << 19
"""Numbers in a chunk: 4 MiB of float64, small enough to stay in cache between the kernels."""

_FLUSH = 1 << 21  # sparse entries kept before they are summed into cells


@dataclass(frozen=True)
class Classwise:
    """Sums in each (class, bin) cell, [K, B]: one-vs-rest calibration without keeping N × K numbers.

    At most B − 1 entries of a row exceed 1/B, so only those are placed one by one; what is left of
    each class's total falls into its first bin.
    """

    count: Tensor
    confidence: Tensor
    positive: Tensor
    square: Tensor  # Σ (p − y)², what the interval needs

    def __add__(self, other: Classwise) -> Classwise:
        return Classwise(
            self.count + other.count,
            self.confidence + other.confidence,
            self.positive + other.positive,
            self.square + other.square,
        )


@dataclass(frozen=True)
class Scores:
    """Per item, float64 on the CPU. `None` means the input does not say (a top-1 file)."""

    labels: Tensor
    predicted: Tensor
    correct: Tensor  # bool: what `confidence` is about
    confidence: Tensor
    log_error: Tensor  # log(1 − confidence), stable: what ranks
    log_p_label: Tensor | None
    brier: Tensor | None
    k: int | None
    bins: int
    group: Tensor | None = None
    classwise: Classwise | None = None
    members: Disagreement | None = None
    about: str = "top label"

    @property
    def n(self) -> int:
        return int(self.labels.shape[0])


def reduce(predictions: Predictions, bins: int = 15, *, chunk: int = CHUNK) -> Scores:
    """Scores of predictions; members are pooled (mean probability) inside each chunk."""
    if predictions.logits is None:
        return _top1(predictions, bins)
    logits, labels = predictions.logits, predictions.labels.to(predictions.logits.device)
    k, n = int(logits.shape[-1]), int(logits.shape[-2])
    rows = max(1, chunk // (k * predictions.members))
    cells = _Cells(k, bins, logits.device)
    parts: list[tuple[Tensor, ...]] = []
    spread: list[Disagreement] = []
    for start in range(0, n, rows):
        y = labels[start : start + rows]
        z = logits[..., start : start + rows, :]
        if z.ndim == 3:
            if len(z) > 1:
                spread.append(disagreement(z, y))
            z = pool(z)
        parts.append(_chunk(z, y, cells))
    columns = [torch.cat(c).cpu() for c in zip(*parts, strict=True)]
    predicted, confidence, log_error, log_p_label, brier = columns
    labels = labels.cpu()
    scores = Scores(
        labels=labels,
        predicted=predicted,
        correct=predicted == labels,
        confidence=confidence,
        log_error=log_error,
        log_p_label=log_p_label,
        brier=brier,
        k=k,
        bins=bins,
        group=None if predictions.group is None else predictions.group.cpu(),
        classwise=cells.total(),
        members=_join(spread) if spread else None,
    )
    return _explicit(scores, predictions)


def positive_class(scores: Scores) -> Scores:
    """The same binary items, with confidence about class 1 instead of about the predicted label."""
    assert scores.k == 2 and scores.classwise is not None
    says_one = scores.predicted == 1
    return replace(
        scores,
        correct=scores.labels == 1,
        confidence=torch.where(says_one, scores.confidence, torch.exp(scores.log_error)),
        log_error=torch.where(says_one, scores.log_error, torch.log(scores.confidence)),
        about="positive class",
    )


def merge(parts: Sequence[Scores]) -> Scores:
    """Scores of the concatenation; merging equals evaluating the whole."""
    first = parts[0]

    def cat(name: str) -> Tensor | None:
        values = [getattr(p, name) for p in parts]
        return None if any(v is None for v in values) else torch.cat(values)

    whole = None
    if first.classwise is not None:
        whole = first.classwise
        for part in parts[1:]:
            assert part.classwise is not None
            whole = whole + part.classwise
    names = ("labels", "predicted", "correct", "confidence", "log_error", "log_p_label", "brier", "group")
    members = [p.members for p in parts if p.members is not None]
    columns: dict[str, Any] = {name: cat(name) for name in names}
    return replace(first, **columns, classwise=whole, members=_join(members) if members else None)


def classwise_influence(predictions: Predictions, signs: Tensor, bins: int, *, chunk: int = CHUNK) -> Tensor:
    """Σ_k signs[k, bin of p_k] (p_k − y_k) of each item: the derivative of Σ|δ| by its weight; signs is [K, bins]."""
    assert predictions.logits is not None
    logits, k = predictions.logits, int(predictions.logits.shape[-1])
    signs = signs.to(logits.device)
    rows, parts = max(1, chunk // (k * predictions.members)), []
    for start in range(0, int(logits.shape[-2]), rows):
        z = logits[..., start : start + rows, :]
        p = torch.softmax(pool(z) if z.ndim == 3 else z.double(), -1)
        y = predictions.labels[start : start + rows].to(p.device)
        total = p @ signs[:, 0]
        row, column = (p > 1 / bins).nonzero(as_tuple=True)
        high = p[row, column]
        change = (signs[column, equal_width(high, bins)] - signs[column, 0]) * high
        total.index_add_(0, row, change)
        total -= signs[y, equal_width(p.gather(1, y[:, None])[:, 0], bins)]
        parts.append(total.cpu())
    return torch.cat(parts)


def _chunk(z: Tensor, y: Tensor, cells: _Cells) -> tuple[Tensor, ...]:
    e = z.to(torch.float64, copy=True)
    top, a = e.max(1)
    e.sub_(top[:, None])
    away = e.gather(1, y[:, None])[:, 0]  # z_y − m, before exp
    e.exp_()
    e.scatter_(1, a[:, None], 0.0)
    rest = e.sum(1)
    log_z = torch.log1p(rest)
    log_error = torch.log(rest) - log_z
    gone = rest == 0  # every other class underflowed: the runner-up alone says how far
    if bool(gone.any()):
        far = z[gone].double().scatter(1, a[gone][:, None], -torch.inf).logsumexp(1)
        log_error[gone] = far - top[gone]
    p_max, scale = 1 / (1 + rest), 1 / (1 + rest)
    p_label = torch.exp(away - log_z)
    cells.add(e, scale, a, p_max, y, p_label)
    e.square_()
    cells.squares(e, scale)
    other = e.sum(1) * scale.square()  # Σ_{j≠a} p_j²
    hit = a == y
    brier = torch.where(hit, (rest * scale).square() + other, p_max.square() + other + 1 - 2 * p_label)
    return a, p_max, log_error, away - log_z, brier


class _Cells:
    """Accumulates `Classwise` over chunks."""

    def __init__(self, k: int, bins: int, device: torch.device) -> None:
        self.k, self.bins, self.n = k, bins, 0
        self.sum = torch.zeros(k, dtype=torch.float64, device=device)
        self.sum2 = torch.zeros_like(self.sum)
        self.labels = torch.zeros_like(self.sum)
        zeros = torch.zeros(k * bins, dtype=torch.float64, device=device)
        self.count, self.conf, self.conf2 = zeros, zeros.clone(), zeros.clone()
        self.hit, self.cross = zeros.clone(), zeros.clone()
        self.entries: list[tuple[Tensor, Tensor]] = []
        self.truths: list[tuple[Tensor, Tensor]] = []
        self.pending = 0

    def add(self, e: Tensor, scale: Tensor, a: Tensor, p_max: Tensor, y: Tensor, p_label: Tensor) -> None:
        """`e` holds exp(z − m) with the maximum zeroed; `scale` turns it into probabilities."""
        self.n += len(e)
        self.sum += scale @ e
        self.sum.index_add_(0, a, p_max)
        self.sum2.index_add_(0, a, p_max.square())
        row, column = (e > (1 / scale / self.bins)[:, None]).nonzero(as_tuple=True)
        self.entries.append((torch.cat([a, column]), torch.cat([p_max, e[row, column] * scale[row]])))
        self.truths.append((y, p_label))
        self.pending += len(a) + len(row)
        if self.pending > _FLUSH:
            self._flush()

    def squares(self, e2: Tensor, scale: Tensor) -> None:
        self.sum2 += scale.square() @ e2

    def _flush(self) -> None:
        size = self.k * self.bins
        which, p = (torch.cat(c) for c in zip(*self.entries, strict=True))
        key = which * self.bins + equal_width(p, self.bins)
        self.count += torch.bincount(key, minlength=size)
        self.conf += torch.bincount(key, p, minlength=size)
        self.conf2 += torch.bincount(key, p * p, minlength=size)
        y, p_label = (torch.cat(c) for c in zip(*self.truths, strict=True))
        key = y * self.bins + equal_width(p_label, self.bins)
        self.hit += torch.bincount(key, minlength=size)
        self.cross += torch.bincount(key, p_label, minlength=size)
        self.labels += torch.bincount(y, minlength=self.k)
        self.entries, self.truths, self.pending = [], [], 0

    def total(self) -> Classwise:
        if self.pending:
            self._flush()
        shape = (self.k, self.bins)
        count, conf, conf2 = (t.reshape(shape).clone() for t in (self.count, self.conf, self.conf2))
        hit, cross = self.hit.reshape(shape), self.cross.reshape(shape)
        count[:, 0] = self.n - count[:, 1:].sum(1)
        conf[:, 0] = self.sum - conf[:, 1:].sum(1)
        conf2[:, 0] = self.sum2 - conf2[:, 1:].sum(1)
        square = (conf2 - 2 * cross + hit).clamp_min(0)
        return Classwise(count.cpu(), conf.cpu(), hit.cpu(), square.cpu())


def _join(parts: Sequence[Disagreement]) -> Disagreement:
    names = ("predictive_entropy", "expected_entropy", "variance", "votes")
    columns = (torch.cat([getattr(p, n).cpu() for p in parts], -1) for n in names)
    return Disagreement(*columns)


def _explicit(scores: Scores, predictions: Predictions) -> Scores:
    """A top-label calibrator's own label and confidence win over those of its logits."""
    if predictions.confidence is None or predictions.predicted is None:
        return scores
    predicted, confidence = predictions.predicted.cpu(), predictions.confidence.cpu().double()
    return replace(
        scores,
        predicted=predicted,
        correct=predicted == scores.labels,
        confidence=confidence,
        log_error=torch.log1p(-confidence),
    )


def _top1(predictions: Predictions, bins: int) -> Scores:
    assert predictions.predicted is not None and predictions.confidence is not None
    predicted, confidence = predictions.predicted.cpu(), predictions.confidence.cpu().double()
    labels = predictions.labels.cpu()
    return Scores(
        labels=labels,
        predicted=predicted,
        correct=predicted == labels,
        confidence=confidence,
        log_error=torch.log1p(-confidence),
        log_p_label=None,
        brier=None,
        k=None,
        bins=bins,
        group=None if predictions.group is None else predictions.group.cpu(),
    )
