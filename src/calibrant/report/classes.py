"""Tables of the report on items: class by class, and the worst confident mistakes.

`recall` is over the items of a class, `precision` and `confidence` are over the items *predicted* as this class,
`gap` is confidence − precision, and `ece` is the one-vs-rest ECE of the class's own probability (absent from top-1
files). Mistakes are wrong answers, the surest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrant.functional.scores import Scores
from calibrant.types import Predictions

LIMIT = 1000


@dataclass(frozen=True)
class ClassRow:
    index: int
    name: str
    n: int
    predicted: int
    recall: float | None
    precision: float | None
    confidence: float | None
    gap: float | None
    ece: float | None


@dataclass(frozen=True)
class ClassTable:
    rows: tuple[ClassRow, ...]
    total: int  # number of classes, which can exceed the number of rows

    @property
    def has_ece(self) -> bool:
        return bool(self.rows) and self.rows[0].ece is not None  # all rows have it, or none


def class_table(scores: Scores, classes: tuple[str, ...] | None = None, limit: int = LIMIT) -> ClassTable:
    """Return one row per class; with more than `limit` classes, only the most frequent that occur."""
    labels, predicted = scores.labels.numpy(), scores.predicted.numpy()
    k = scores.k or int(max(labels.max(), predicted.max())) + 1
    right = predicted == labels
    n, said = np.bincount(labels, minlength=k), np.bincount(predicted, minlength=k)
    hits = np.bincount(labels, right.astype(float), minlength=k)
    sure = np.bincount(predicted, top_confidence(scores), minlength=k)
    ece = None
    if scores.classwise is not None:
        cells = scores.classwise
        ece = ((cells.confidence - cells.positive).abs().sum(1) / scores.n).tolist()
    present = np.flatnonzero(n + said) if k > limit else np.arange(k)
    kept = np.sort(present[np.argsort(-(n + said)[present], kind="stable")][:limit])
    rows = []
    for c in kept.tolist():
        precision = hits[c] / said[c] if said[c] else None
        confidence = sure[c] / said[c] if said[c] else None
        rows.append(
            ClassRow(
                index=c,
                name=class_name(classes, c),
                n=int(n[c]),
                predicted=int(said[c]),
                recall=hits[c] / n[c] if n[c] else None,
                precision=precision,
                confidence=confidence,
                gap=None if confidence is None or precision is None else confidence - precision,
                ece=None if ece is None else ece[c],
            )
        )
    return ClassTable(tuple(rows), k)


def class_name(classes: Sequence[str] | None, c: int) -> str:
    """Return the name of a class, or its number if it has no name."""
    return classes[c] if classes is not None and c < len(classes) else str(c)


def top_confidence(scores: Scores) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the confidence in the predicted class, also if the scores are about the positive class."""
    conf = scores.confidence.numpy()
    if scores.about == "top label":
        return conf
    return np.where(scores.predicted.numpy() == 1, conf, 1 - conf)


WORST = 20


@dataclass(frozen=True)
class Mistake:
    row: int
    id: str | None
    predicted: str
    label: str
    confidence: float
    p_label: float | None  # the probability of the true class


def mistakes(scores: Scores, predictions: Predictions | None = None, limit: int = WORST) -> list[Mistake]:
    """Return the surest wrong answers, ranked by log(1 − p), which distinguishes confidences that round to 1.0."""
    wrong = np.flatnonzero(scores.predicted.numpy() != scores.labels.numpy())
    conf = top_confidence(scores)
    doubt = scores.log_error.numpy() if scores.about == "top label" else -conf
    rows = wrong[np.argsort(doubt[wrong], kind="stable")][:limit]
    ids = None if predictions is None else predictions.ids
    classes = None if predictions is None else predictions.classes
    p_label = None if scores.log_p_label is None else scores.log_p_label.exp()
    return [
        Mistake(
            row=i,
            id=None if ids is None else ids[i],
            predicted=class_name(classes, int(scores.predicted[i])),
            label=class_name(classes, int(scores.labels[i])),
            confidence=float(conf[i]),
            p_label=None if p_label is None else float(p_label[i]),
        )
        for i in rows.tolist()
    ]
