"""The border: a user's arrays → checked `Predictions`. Nothing is guessed from values.

Logits and probabilities are told apart by the argument's name alone. Probabilities become logs here,
in float64, with one floor: below 1e-30 counts as 1e-30. −inf logits stay impossible classes.
Images of labels enter by `class_axis` and `ignore_index` and leave as rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.output import both_classes
from calibrant.functional.plain import floating, plain
from calibrant.functional.probabilities import SUM_TOLERANCE, look_like_probabilities, warn_of_probabilities
from calibrant.functional.rows import classes_last, rows
from calibrant.types import Predictions, Split

FLOOR = 1e-30
"""Probabilities below this count as this when they become logs."""


def predictions(
    logits: Any = None,
    labels: Any = None,
    *,
    probs: Any = None,
    predicted: Any = None,
    confidence: Any = None,
    split: Split | str = Split.UNKNOWN,
    class_axis: int = -1,
    ignore_index: int | None = None,
    ids: Sequence[Any] | None = None,
    classes: Sequence[Any] | None = None,
    features: Any = None,
    group: Any = None,
    raw: bool = True,
    source: str = "",
    doubt: bool = True,
) -> Predictions:
    """Check and join arrays into `Predictions`; the error names the row.

    `logits` (or `probs`) is [N, K], [M, N, K] for members, or one column (`[N]`, `[N, 1]`) for a
    binary problem, read as the score of class 1. `predicted` + `confidence` alone make a top-1 set.
    Raw logits that look like probabilities are taken as logits, with a `CalibrantWarning`; a caller that sees only a
    part of the items says `doubt=False`.
    """
    where = f"{source}: " if source else ""
    if labels is None:
        raise InputError(f"{where}no labels; pass one integer class per item")
    if logits is not None and probs is not None:
        raise InputError(f"{where}both logits and probs were given; pass exactly one of them")
    y = as_tensor(labels, "labels", where)
    beside = {"ids": ids, "features": features, "group": group, "predicted": predicted, "confidence": confidence}
    scores, binary = None, False
    if logits is not None or probs is not None:
        name = "logits" if logits is not None else "probs"
        scores = floating(as_tensor(logits if logits is not None else probs, name, where))
        scores = classes_last(scores, class_axis, name, where)
    scores, y, beside = rows(scores, y, beside, ignore_index, where)
    if scores is not None:
        scores, binary = _binary(scores, name, where, y)
        _shape(scores, name, where)
        if name == "logits":
            _finite_logits(scores, where)
            if doubt and raw and look_like_probabilities(scores, binary):
                warn_of_probabilities(where)
        else:
            scores, raw = log_probabilities(scores, where), False
    elif predicted is None or confidence is None:
        raise InputError(f"{where}no scores; pass logits, or probs, or predicted and confidence together")
    y = integer_labels(y, None if scores is None else int(scores.shape[-1]), where)
    n = len(y) if scores is None else int(scores.shape[-2])
    if n == 0 or len(y) == 0:
        raise InputError(f"{where}there are no items (N = 0)")
    if len(y) != n:
        turned = scores is not None and scores.ndim == 2 and scores.shape[1] == len(y)
        remedy = "the scores look transposed: a row is an item" if turned else "they must be of equal length"
        raise InputError(f"{where}{n} rows of scores but {len(y)} labels; {remedy}")
    guess, sure = _top1(beside["predicted"], beside["confidence"], n, where)
    return Predictions(
        labels=y,
        logits=scores,
        predicted=guess,
        confidence=sure,
        split=as_split(split, where),
        raw=raw,
        ids=_texts(beside["ids"], n, "ids", where),
        classes=_texts(classes, None if scores is None else int(scores.shape[-1]), "classes", where),
        features=_aligned(beside["features"], n, "features", where),
        group=_groups(beside["group"], n, where),
        binary=binary,
        source=source,
    )


def as_tensor(values: Any, name: str, where: str = "") -> Tensor:
    """A tensor of numbers; text, objects and ragged lists are refused by name."""
    if isinstance(values, Tensor):
        return plain(values, name, where)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{where}{name} is ragged: every row must have the same length") from error
    if array.dtype.kind not in "fiub":
        remedy = "; number the classes from 0, in the order of the scores" if name in ("labels", "predicted") else ""
        raise InputError(f"{where}{name} holds {array.dtype}, not numbers{remedy}")
    if array.dtype == np.longdouble and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    array = np.ascontiguousarray(array) if array.ndim else array.reshape(1)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def integer_labels(labels: Tensor, k: int | None, where: str = "") -> Tensor:
    """[N] int64 in [0, K); anything else is named with its row."""
    if labels.ndim == 2 and k is not None and labels.shape[1] == k and k > 1:
        raise InputError(
            f"{where}labels are a [N, {k}] table: multilabel targets are not supported; "
            "pass one class index per item (argmax, if the rows are one-hot)"
        )
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise InputError(f"{where}labels must be one integer per item, not an array of shape {tuple(labels.shape)}")
    if labels.is_floating_point():
        bad = ~(torch.isfinite(labels) & (labels == labels.round()))
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            raise InputError(f"{where}label in row {row} is {labels[row].item()}, not an integer class index")
    labels = labels.long()
    low = labels < 0
    bad = low if k is None else low | (labels >= k)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        span = "0 or more" if k is None else f"in 0…{k - 1} for {k} classes"
        raise InputError(
            f"{where}label in row {row} is {int(labels[row])}; labels must be {span}{_remedy(labels, bad, k)}"
        )
    return labels


def _remedy(labels: Tensor, bad: Tensor, k: int | None) -> str:
    """What such labels usually are. It is said, never done: whether class 1 is the first column, the user knows."""
    low, high, odd = int(labels.min()), int(labels.max()), labels[bad]
    if k is not None and (low, high) == (1, k):
        return f"; these run from 1 to {k}: subtract 1"
    if bool((odd == odd[0]).all()) and (int(odd[0]) < 0 or int(odd[0]) == 255):
        return f"; if it marks items that do not count, say ignore_index={int(odd[0])} (--ignore-index)"
    return ""


def log_probabilities(probs: Tensor, where: str = "") -> Tensor:
    """Checked probabilities [..., K] → log-probabilities in float64, floored at 1e-30."""
    p = probs.to(torch.float64, copy=True)  # the one copy: it becomes the result in place
    total, low = p.sum(-1), p.amin(-1)
    if not bool(torch.isfinite(total).all()):
        bad = ~torch.isfinite(p)
        if bool(bad.any()):
            raise InputError(f"{where}probs in row {_row(bad)} has {p[bad][0].item()}; they must be finite")
    bad = low < 0
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        raise InputError(
            f"{where}probs in row {at[-1]} has the negative value {low[at].item():.4g}; "
            "if these are logits, pass them as logits"
        )
    bad = ~((total - 1).abs() <= SUM_TOLERANCE.get(probs.dtype, 1e-3))
    if bool(bad.any()):
        at = tuple(bad.nonzero()[0].tolist())
        raise InputError(
            f"{where}probs in row {at[-1]} sum to {total[at].item():.6g}, not 1; "
            "if these are logits, pass them as logits, else normalise them"
        )
    return p.clamp_min_(FLOOR).log_()


def as_split(split: Split | str, where: str = "") -> Split:
    try:
        return Split(str(split))
    except ValueError as error:
        names = ", ".join(s.value for s in Split)
        raise InputError(f"{where}unknown split {str(split)!r}; use one of {names}") from error


def _row(bad: Tensor) -> int:
    """The item (not the member, not the class) of the first offence."""
    return int(bad.nonzero()[0][-2 if bad.ndim > 1 else 0])


def _binary(scores: Tensor, name: str, where: str, y: Tensor) -> tuple[Tensor, bool]:
    """One column means the score of class 1: logits [0, z], probabilities [1 − p, p]."""
    if scores.ndim == 2 and scores.shape[1] == 1:
        if len(y) and not bool(y.any()):
            raise InputError(
                f"{where}one class only: {name} of shape {tuple(scores.shape)}, every label 0; two are needed at least "
                f"(the scores of class 1 in a binary problem go in as {name} of shape ({len(scores)},))"
            )
        scores = scores[:, 0]
    if scores.ndim != 1:
        return scores, False
    if name == "logits":
        return both_classes(scores), True
    p = scores.double()
    bad = ~((p >= 0) & (p <= 1))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise InputError(
            f"{where}probs in row {row} is {p[row].item():.4g}, outside 0…1; if these are logits, pass them as logits"
        )
    return torch.stack([1 - p, p], -1), True


def _shape(scores: Tensor, name: str, where: str) -> None:
    if scores.ndim not in (2, 3):
        raise InputError(
            f"{where}{name} has shape {tuple(scores.shape)}; expected [N, K] or [M, N, K] "
            "(for images of labels say class_axis=1)"
        )
    if scores.shape[-2] == 0 or scores.shape[0] == 0:
        raise InputError(f"{where}there are no items (N = 0)")
    if scores.shape[-1] < 2:
        raise InputError(f"{where}{name} has {scores.shape[-1]} class; at least two are needed")


def _finite_logits(logits: Tensor, where: str) -> None:
    """NaN and +inf are errors; −inf is an impossible class, but not every class may be impossible."""
    top = logits.amax(-1)
    if bool(torch.isfinite(top).all()) and not bool(torch.isnan(logits.sum(-1)).any()):
        return
    bad = torch.isnan(logits) | torch.isposinf(logits)
    if bool(bad.any()):
        rows_hit = int(bad.reshape(-1, *bad.shape[-2:]).any(0).any(-1).sum())
        more = f" (the first of {rows_hit} such rows)" if rows_hit > 1 else ""
        value = logits[bad][0].item()
        raise InputError(f"{where}logits in row {_row(bad)} has {value}{more}; they must be finite or -inf")
    bad = torch.isneginf(top)
    if bool(bad.any()):
        raise InputError(f"{where}logits in row {int(bad.nonzero()[0][-1])} are all -inf: every class is impossible")


def _top1(predicted: Any, confidence: Any, n: int, where: str) -> tuple[Tensor | None, Tensor | None]:
    if predicted is None and confidence is None:
        return None, None
    if predicted is None or confidence is None:
        raise InputError(f"{where}predicted and confidence must come together")
    guess = integer_labels(
        as_tensor(predicted, "predicted", where), None, where.replace(": ", ": predicted: ") or "predicted: "
    )
    sure = as_tensor(confidence, "confidence", where).double()
    if len(guess) != n or sure.shape != guess.shape:
        raise InputError(f"{where}{n} labels, {len(guess)} predicted and {len(sure)} confidences; they must be equal")
    bad = ~((sure >= 0) & (sure <= 1))
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise InputError(f"{where}confidence in row {row} is {sure[row].item():.4g}; it must be in 0…1")
    return guess, sure


def _texts(values: Sequence[Any] | None, n: int | None, name: str, where: str) -> tuple[str, ...] | None:
    if values is None:
        return None
    texts = tuple(str(v) for v in (values.tolist() if hasattr(values, "tolist") else values))
    if n is not None and len(texts) != n:
        raise InputError(f"{where}{len(texts)} {name} but {n} expected")
    return texts


def _aligned(values: Any, n: int, name: str, where: str) -> Tensor | None:
    if values is None:
        return None
    tensor = as_tensor(values, name, where)
    if len(tensor) != n:
        raise InputError(f"{where}{len(tensor)} rows of {name} but {n} items")
    return tensor


def _groups(group: Any, n: int, where: str) -> Tensor | None:
    """Any labels of groups (numbers or text) → dense ids 0…G−1."""
    if group is None:
        return None
    values = group.cpu().numpy() if isinstance(group, Tensor) else np.asarray(group)
    if values.shape != (n,):
        raise InputError(f"{where}group has shape {values.shape}; give one entry for each of the {n} items")
    empty = [v is None or v != v for v in values] if values.dtype.kind == "O" else values != values
    if np.any(empty):
        raise InputError(f"{where}group has an empty entry (None or NaN); say which group each item belongs to")
    return torch.from_numpy(np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64))
