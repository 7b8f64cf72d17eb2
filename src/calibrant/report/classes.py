"""Tables of the report on items: class by class, and the worst confident mistakes.

Per class: how many, how well recognised, how trustworthy when predicted, how calibrated. `recall` is over items of
the class, `precision` and `confidence` over items *predicted* as it, `gap` is their difference, `ece` the one-vs-rest
ECE of the class's own probability (absent from top-1 files). Mistakes are wrong answers, surest first.
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
    total: int  # classes in all; more than rows when cut

    @property
    def has_ece(self) -> bool:
        return bool(self.rows) and self.rows[0].ece is not None  # all rows have it, or none


def class_table(scores: Scores, classes: tuple[str, ...] | None = None, limit: int = LIMIT) -> ClassTable:
    """One row per class that occurs (as a label or a prediction); beyond `limit` the most frequent."""
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
    """The name of a class, or its number if it has none."""
    return classes[c] if classes is not None and c < len(classes) else str(c)


def top_confidence(scores: Scores) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Confidence in the predicted class, also when the scores are about the positive one."""
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
    p_label: float | None  # the probability that the truth got


def mistakes(scores: Scores, predictions: Predictions | None = None, limit: int = WORST) -> list[Mistake]:
    """Ranked by log(1 − p), which distinguishes confidences that round to 1.0; ties in row order."""
    wrong = np.flatnonzero(scores.predicted.numpy() != scores.labels.numpy())
    conf = top_confidence(scores)
    doubt = scores.log_error.numpy() if scores.about == "top label" else np.log1p(-np.minimum(conf, 1))
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
