"""`reduce`: one pass over logits and labels → `Scores`, what every metric needs of each item.

The logits are read once, in chunks, in float64 whatever their dtype; only one chunk is ever copied. Metrics, bootstrap,
streams and top-1 files all start from `Scores`.

With m = max_k z_k, a its index and R = Σ_{j≠a} exp(z_j − m):

    p_max = 1/(1+R),   log(1 − p_max) = log R − log(1+R),   log p_y = z_y − m − log(1+R)

So log(1 − p_max) keeps its digits where p_max rounds to 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.chunks import row_chunks
from calibrant.functional.classwise import Classwise, ClasswiseSum
from calibrant.functional.pooling import Disagreement, disagreement, pool
from calibrant.types import Predictions

__all__ = ["Classwise", "Scores", "merge", "positive_class", "reduce"]

CPU = torch.device("cpu")
COLUMNS = ("labels", "predicted", "correct", "confidence", "log_error", "log_p_label", "brier", "group")
"""The fields of `Scores` with one value per item."""


@dataclass(frozen=True)
class Scores:
    """The scores of each item, in float64. A field is None if the input (a top-1 file) does not contain it."""

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

    @cached_property
    def right(self) -> int:
        """The number of correct items."""
        return int(self.correct.sum())

    def take(self, rows: Tensor) -> Scores:
        """The scores of these items, without the sums over all items."""
        held = {name: c for name in COLUMNS if (c := getattr(self, name)) is not None}
        columns: dict[str, Any] = {name: c[rows] for name, c in held.items()}
        return replace(self, **columns, classwise=None, members=None)


def reduce(
    predictions: Predictions,
    bins: int = 15,
    *,
    chunk: int | None = None,
    classwise: bool = True,
    through: Callable[[Tensor], Tensor] | None = None,
    home: torch.device = CPU,
    rows: Tensor | None = None,
) -> Scores:
    """Scores of predictions; members are pooled (mean probability) inside each chunk.

    `classwise=False` leaves out the sums in (class, bin) cells, a third of the work. `through` is a map of the logits,
    applied to each chunk. The scores are moved to the device `home`. `rows` are the items that are wanted: their logits
    are gathered a chunk at a time, so that no copy of them is held.
    """
    logits = predictions.logits
    if rows is not None:
        predictions = replace(predictions, logits=None, ids=None, features=None).take(rows)
    if logits is None:
        return _top1(predictions, bins, home)
    labels, wanted = predictions.labels.to(logits.device), None if rows is None else rows.to(logits.device)
    k, n = int(logits.shape[-1]), predictions.n
    chunks = row_chunks(logits, chunk, n)
    cells = ClasswiseSum(k, bins, logits.device) if classwise else None
    # one workspace for all chunks: blocks that are freed between kept ones would fragment the heap by as much as the
    # logits take
    room = torch.empty(chunks[0].stop if chunks else 0, k, dtype=torch.float64, device=logits.device)
    predicted = torch.empty(n, dtype=torch.long, device=logits.device)
    columns = torch.empty(4, n, dtype=torch.float64, device=logits.device)
    spread: list[Disagreement] = []
    for at in chunks:
        y = labels[at]
        z = logits[..., at, :] if wanted is None else logits.index_select(-2, wanted[at])
        if through is not None:  # in place, because fresh pages of memory take longer than the map
            z = through(room[: len(y)].copy_(z) if z.ndim == 2 else z)
        if z.ndim == 3:
            z = _pooled(z, y, spread)
        found = _chunk(z, y, cells, room[: len(y)])
        predicted[at] = found[0]
        for column, values in zip(columns, found[1:], strict=True):
            column[at] = values
    confidence, log_error, log_p_label, brier = columns.to(home)
    labels, predicted = labels.to(home), predicted.to(home)
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
        group=None if predictions.group is None else predictions.group.to(home),
        classwise=None if cells is None else cells.total(),
        members=_join(spread) if spread else None,
    )
    return _explicit(scores, predictions)


def positive_class(scores: Scores, source: str = "") -> Scores:
    """The scores of binary items with confidence about class 1 instead of about the predicted label."""
    if scores.k != 2:
        where = f"{source}: " if source else ""
        raise InputError(f"{where}about='positive' needs exactly two classes, these predictions have {scores.k}")
    says_one = scores.predicted == 1
    return replace(
        scores,
        correct=scores.labels == 1,
        confidence=torch.where(says_one, scores.confidence, torch.exp(scores.log_error)),
        log_error=torch.where(says_one, scores.log_error, torch.log(scores.confidence)),
        about="positive class",
    )


def merge(parts: Sequence[Scores]) -> Scores:
    """The scores of all parts together, equal to those of the concatenated predictions."""
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
    members = [p.members for p in parts if p.members is not None]
    columns: dict[str, Any] = {name: cat(name) for name in COLUMNS}
    return replace(first, **columns, classwise=whole, members=_join(members) if members else None)


def _pooled(members: Tensor, y: Tensor, spread: list[Disagreement]) -> Tensor:
    """The pooled prediction of members [M, n, K]; the disagreement of several members is appended to `spread`."""
    if len(members) > 1:
        spread.append(disagreement(members, y))
    return pool(members)


def _chunk(z: Tensor, y: Tensor, cells: ClasswiseSum | None, e: Tensor) -> tuple[Tensor, ...]:
    """The columns of one chunk; `e` is a float64 buffer of its shape."""
    a = argmax(z)
    e.copy_(z)
    top = e.gather(1, a[:, None])
    e.sub_(top)
    away = e.gather(1, y[:, None])[:, 0]  # z_y − m, before exp
    exp_(e)
    e.scatter_(1, a[:, None], 0.0)
    rest = e.sum(1)
    log_z = torch.log1p(rest)
    log_error = torch.log(rest) - log_z
    gone = rest == 0  # all other classes underflowed, so only their logits tell how far away they are
    if bool(gone.any()):
        far = z[gone].double().scatter(1, a[gone][:, None], -torch.inf).logsumexp(1)
        log_error[gone] = far - top[gone, 0]
    p_max = 1 / (1 + rest)
    p_label = torch.exp(away - log_z)
    if cells is not None:
        cells.add(e, p_max, a, y, p_label)
    other = (torch.linalg.vector_norm(e, dim=1) * p_max).square()  # Σ_{j≠a} p_j²
    hit = a == y
    brier = torch.where(hit, (rest * p_max).square() + other, p_max.square() + other + 1 - 2 * p_label)
    return a, p_max, log_error, away - log_z, brier


def argmax(z: Tensor) -> Tensor:
    """The index of the first maximum. On the CPU, NumPy is fastest for long rows and `max` for short ones."""
    if z.device.type != "cpu":
        return z.argmax(1)
    if z.dtype in (torch.float32, torch.float64) and z.shape[1] >= 32:
        return torch.from_numpy(np.argmax(z.numpy(), 1))
    return z.max(1).indices


def exp_(e: Tensor) -> Tensor:
    """exp in place. On one thread, NumPy's AVX-512 kernel is twice as fast as torch's."""
    alone = e.device.type == "cpu" and torch.get_num_threads() == 1
    if alone and torch.backends.cpu.get_cpu_capability() == "AVX512":
        np.exp(e.numpy(), out=e.numpy())
        return e
    return e.exp_()


def _join(parts: Sequence[Disagreement]) -> Disagreement:
    names = ("predictive_entropy", "expected_entropy", "variance", "votes")
    columns = (torch.cat([getattr(p, n).cpu() for p in parts], -1) for n in names)
    return Disagreement(*columns)


def _explicit(scores: Scores, predictions: Predictions) -> Scores:
    """The label and confidence of a top-label calibrator replace those of its logits."""
    if predictions.confidence is None or predictions.predicted is None:
        return scores
    home = scores.labels.device
    predicted, confidence = predictions.predicted.to(home), predictions.confidence.to(home).double()
    return replace(
        scores,
        predicted=predicted,
        correct=predicted == scores.labels,
        confidence=confidence,
        log_error=torch.log1p(-confidence),
    )


def _top1(predictions: Predictions, bins: int, home: torch.device) -> Scores:
    assert predictions.predicted is not None and predictions.confidence is not None
    predicted, confidence = predictions.predicted.to(home), predictions.confidence.to(home).double()
    labels = predictions.labels.to(home)
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
        group=None if predictions.group is None else predictions.group.to(home),
    )
