"""Per class: how many, how well recognised, how trustworthy when predicted, how calibrated.

`recall` is over items of the class, `precision` and `confidence` over items *predicted* as it, `gap` is their
difference, `ece` the one-vs-rest ECE of the class's own probability (absent from top-1 files).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrant.functional.scores import Scores

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
