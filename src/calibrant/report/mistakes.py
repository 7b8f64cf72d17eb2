"""The worst confident mistakes: wrong answers, surest first, with the row and its id so that one can look at them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrant.functional.scores import Scores
from calibrant.report.classes import class_name, top_confidence
from calibrant.types import Predictions

LIMIT = 20


@dataclass(frozen=True)
class Mistake:
    row: int
    id: str | None
    predicted: str
    label: str
    confidence: float
    p_label: float | None  # the probability that the truth got


def mistakes(scores: Scores, predictions: Predictions | None = None, limit: int = LIMIT) -> list[Mistake]:
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
