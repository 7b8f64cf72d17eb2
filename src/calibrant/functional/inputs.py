"""A user's arrays → checked `Predictions`. Nothing is guessed from the values.

Only the name of the argument tells logits from probabilities. Probabilities become logs (`probabilities`), and a logit
of −inf marks an impossible class. Images of labels are given with `class_axis` and `ignore_index` and become rows, one
per pixel (`segmentation`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.class_names import as_text, known_classes, named_apart, numbered
from calibrant.functional.model_output import both_classes
from calibrant.functional.probabilities import log_probabilities, look_like_probabilities, warn_of_probabilities
from calibrant.functional.segmentation import classes_last, flatten
from calibrant.functional.tensors import as_tensor, first_place, floating
from calibrant.types import Predictions, Split


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
    """Check arrays and join them into `Predictions`. Errors name the row.

    `logits` (or `probs`) is [N, K], [M, N, K] for members, or one column (`[N]`, `[N, 1]`) with the score of class 1 in
    a binary problem. Labels are numbers or, with the names of the `classes` in the order of the scores, text.
    `predicted` and `confidence` alone make a top-1 set. Raw logits that look like probabilities are used as logits,
    with a `CalibrantWarning`; a caller that passes only some of the items sets `doubt=False`.
    """
    where = f"{source}: " if source else ""
    _check_given(logits, labels, probs, where)
    name, given = ("logits", logits) if logits is not None else ("probs", probs)
    names = known_classes(classes, labels, given)
    if names is None and given is None:
        names = named_apart(labels, predicted)
    beside = {"ids": ids, "features": features, "group": group, "predicted": predicted, "confidence": confidence}
    scores, y, beside = _items(given, labels, beside, name, names, class_axis, ignore_index, where)
    binary = False
    if scores is not None:
        scores, binary = _logits(scores, y, name, where, doubt and raw)
        raw = raw and name == "logits"
    elif predicted is None or confidence is None:
        raise InputError(f"{where}no scores; pass logits, or probs, or predicted and confidence together")
    k = None if scores is None else int(scores.shape[-1])
    n = _count(scores, y, where)
    y = integer_labels(y, k, where)
    group_ids, group_names = numbered_groups(beside["group"], n, where)
    guess, sure = _top1(beside["predicted"], beside["confidence"], n, where)
    return Predictions(
        labels=y,
        logits=scores,
        predicted=guess,
        confidence=sure,
        split=as_split(split, where),
        raw=raw,
        ids=_texts(beside["ids"], n, "ids", where),
        classes=_texts(names, k, "classes", where),
        features=_aligned(beside["features"], n, "features", where),
        group=group_ids,
        group_names=group_names,
        binary=binary,
        source=source,
    )


def _check_given(logits: Any, labels: Any, probs: Any, where: str) -> None:
    if isinstance(logits, str | PathLike):
        raise InputError(f"{str(logits)!r} is a path, not scores; read it first: calibrant.read({str(logits)!r})")
    if labels is None:
        table = "; a data frame is read by calibrant.read(df, labels_key=…)" if hasattr(logits, "columns") else ""
        raise InputError(f"{where}no labels; pass one class per item{table}")
    if logits is not None and probs is not None:
        raise InputError(f"{where}both logits and probs were given; pass exactly one of them")


def _items(
    given: Any,
    labels: Any,
    beside: dict[str, Any],
    name: str,
    names: Sequence[str] | None,
    class_axis: int,
    ignore_index: int | None,
    where: str,
) -> tuple[Tensor | None, Tensor, dict[str, Any]]:
    """Scores, labels and the columns beside them as numbers, one row per item."""
    y = as_tensor(numbered(labels, names, "label", where), "labels", where)
    if beside["predicted"] is not None:
        beside = {**beside, "predicted": numbered(beside["predicted"], names, "predicted", where)}
    scores = None
    if given is not None:
        scores = classes_last(floating(as_tensor(given, name, where)), class_axis, name, where)
    return flatten(scores, y, beside, ignore_index, where)


def _count(scores: Tensor | None, y: Tensor, where: str) -> int:
    """The number of items; scores and labels must agree on it."""
    n = len(y) if scores is None else int(scores.shape[-2])
    if n == 0 or len(y) == 0:
        raise InputError(f"{where}there are no items (N = 0)")
    if len(y) != n:
        turned = scores is not None and scores.ndim == 2 and scores.shape[1] == len(y)
        remedy = "the scores look transposed: pass one row per item" if turned else "they must be of equal length"
        raise InputError(f"{where}{n} rows of scores but {len(y)} labels; {remedy}")
    return n


def integer_labels(labels: Tensor, k: int | None, where: str = "") -> Tensor:
    """The labels as int64 [N] in [0, K). An error names the row of any other label."""
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
        whole = torch.isfinite(labels) & (labels == labels.long())
        if at := first_place(~whole):
            raise InputError(f"{where}label in row {at[0]} is {labels[at].item()}, not an integer class index")
    labels = labels.long()
    low = labels < 0
    bad = low if k is None else low | (labels >= k)
    if at := first_place(bad):
        span = "0 or more" if k is None else f"in 0…{k - 1} for {k} classes"
        raise InputError(
            f"{where}label in row {at[0]} is {int(labels[at])}; labels must be {span}{_remedy(labels, bad, k)}"
        )
    return labels


def _remedy(labels: Tensor, bad: Tensor, k: int | None) -> str:
    """What such labels usually mean. They are not changed, because only the user knows what class 1 is."""
    low, high, odd = int(labels.min()), int(labels.max()), labels[bad]
    if k is not None and (low, high) == (1, k):
        return f"; these run from 1 to {k}: subtract 1"
    if bool((odd == odd[0]).all()) and (int(odd[0]) < 0 or int(odd[0]) == 255):
        return f"; if it marks items that do not count, pass ignore_index={int(odd[0])} (--ignore-index)"
    return ""


def as_split(split: Split | str, where: str = "") -> Split:
    try:
        return Split(str(split))
    except ValueError as error:
        names = ", ".join(s.value for s in Split)
        raise InputError(f"{where}unknown split {str(split)!r}; use one of {names}") from error


def _logits(scores: Tensor, y: Tensor, name: str, where: str, doubted: bool) -> tuple[Tensor, bool]:
    """(logits of all classes, whether the scores were one column). With `doubted`, warn if they look like
    probabilities."""
    scores, binary = _binary(scores, name, where, y)
    _shape(scores, name, where)
    if name == "probs":
        return log_probabilities(scores, where), binary
    _finite_logits(scores, where)
    if doubted and look_like_probabilities(scores, binary):
        warn_of_probabilities(where)
    return scores, binary


def _binary(scores: Tensor, name: str, where: str, y: Tensor) -> tuple[Tensor, bool]:
    """One column is the score of class 1: logits [0, z], probabilities [1 − p, p]."""
    if scores.ndim == 2 and scores.shape[1] == 1:
        if len(y) and not bool(y.any()):
            raise InputError(
                f"{where}one class only: {name} of shape {tuple(scores.shape)}, every label 0; at least two are needed "
                f"(for a binary problem, pass the scores of class 1 as {name} of shape ({len(scores)},))"
            )
        scores = scores[:, 0]
    if scores.ndim != 1:
        return scores, False
    if name == "logits":
        return both_classes(scores), True
    p = scores.double()
    if at := first_place(~((p >= 0) & (p <= 1))):
        raise InputError(
            f"{where}probs in row {at[0]} is {p[at].item():.4g}, outside 0…1; if these are logits, pass them as logits"
        )
    return torch.stack([1 - p, p], -1), True


def _shape(scores: Tensor, name: str, where: str) -> None:
    if scores.ndim not in (2, 3):
        raise InputError(
            f"{where}{name} has shape {tuple(scores.shape)}; expected [N, K] or [M, N, K] "
            "(for images of labels pass class_axis=1)"
        )
    if scores.shape[-2] == 0 or scores.shape[0] == 0:
        raise InputError(f"{where}there are no items (N = 0)")
    if scores.shape[-1] < 2:
        raise InputError(f"{where}{name} has {scores.shape[-1]} class; at least two are needed")


def _finite_logits(logits: Tensor, where: str) -> None:
    """Raise an error for NaN, +inf, and rows that are all −inf. Some −inf in a row mark impossible classes."""
    top = logits.amax(-1)  # NaN where a row has one
    if math.isfinite(top.abs().amax()):
        return
    bad = torch.isnan(logits) | torch.isposinf(logits)
    if at := first_place(bad):
        rows_hit = int(bad.reshape(-1, *bad.shape[-2:]).any(0).any(-1).sum())
        more = f" (the first of {rows_hit} such rows)" if rows_hit > 1 else ""
        raise InputError(f"{where}logits in row {at[-2]} has {logits[at].item()}{more}; they must be finite or -inf")
    if at := first_place(torch.isneginf(top)):
        raise InputError(f"{where}logits in row {at[-1]} are all -inf: every class is impossible")


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
    if at := first_place(~((sure >= 0) & (sure <= 1))):
        raise InputError(f"{where}confidence in row {at[0]} is {sure[at].item():.4g}; it must be in 0…1")
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


def numbered_groups(group: Any, n: int, where: str = "") -> tuple[Tensor | None, tuple[str, ...] | None]:
    """Group labels of any kind (numbers or text) → (ids in 0…G−1, the label of each id)."""
    if group is None:
        return None, None
    values = group.cpu().numpy() if isinstance(group, Tensor) else np.asarray(group)
    if values.shape != (n,):
        raise InputError(f"{where}group has shape {values.shape}; give one entry for each of the {n} items")
    empty = [v is None or v != v for v in values] if values.dtype.kind == "O" else values != values
    if np.any(empty):
        raise InputError(f"{where}group has an empty entry (None or NaN); give the group of every item")
    names, ids = np.unique(values, return_inverse=True)
    return torch.from_numpy(ids.reshape(-1).astype(np.int64)), tuple(map(as_text, names.tolist()))
