"""Per-class rows and worst mistakes against scikit-learn and sorting by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support

from calibrant import predictions
from calibrant.functional import reduce
from calibrant.functional.scores import positive_class
from calibrant.metrics import METRICS
from calibrant.report.classes import class_table, mistakes
from calibrant.types import Predictions


def test_classes_against_sklearn(make: Callable[..., Predictions]) -> None:
    scores = reduce(make(n=800, k=5))
    table = class_table(scores, ("a", "b", "c", "d", "e"))
    precision, recall, _, support = precision_recall_fscore_support(
        scores.labels, scores.predicted, zero_division=np.nan
    )
    np.testing.assert_allclose([r.precision for r in table.rows], precision)
    np.testing.assert_allclose([r.recall for r in table.rows], recall)
    assert [r.n for r in table.rows] == support.tolist()
    assert [r.name for r in table.rows] == list("abcde")
    for row in table.rows:
        mine = [c for c, p in zip(scores.confidence.tolist(), scores.predicted.tolist(), strict=True) if p == row.index]
        assert row.confidence == pytest.approx(sum(mine) / len(mine))
        assert row.gap is not None and row.precision is not None
        assert row.gap == pytest.approx(row.confidence - row.precision)
    mean = np.mean([r.ece for r in table.rows if r.ece is not None])
    assert mean == pytest.approx(float(METRICS["ece_classwise"](scores)))


def test_top1_has_no_classwise_ece() -> None:
    table = class_table(reduce(predictions(predicted=[0, 3], confidence=[0.9, 0.8], labels=[0, 1])))
    assert not table.has_ece
    assert [r.index for r in table.rows] == [0, 1, 2, 3]
    assert table.rows[2].recall is None and table.rows[2].precision is None


def test_many_classes_are_cut_to_the_most_frequent() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5000, 3000)
    p = predictions(predicted=labels, confidence=np.full(3000, 0.9), labels=labels)
    table = class_table(reduce(p), limit=100)
    counts = np.bincount(labels)
    assert len(table.rows) == 100
    assert min(r.n for r in table.rows) >= np.sort(counts)[-100]


def test_mistakes_surest_first_with_ids(make: Callable[..., Predictions]) -> None:
    p = make(n=300, ids=[f"item-{i}" for i in range(300)], classes=list("abcdef"))
    scores = reduce(p)
    found = mistakes(scores, p, limit=7)
    wrong = sorted(
        (i for i in range(300) if scores.predicted[i] != scores.labels[i]), key=lambda i: -float(scores.confidence[i])
    )
    assert [m.row for m in found] == wrong[:7]
    assert [m.id for m in found] == [f"item-{i}" for i in wrong[:7]]
    assert found[0].predicted == "abcdef"[int(scores.predicted[wrong[0]])]
    assert all(m.predicted != m.label for m in found)


def test_saturated_confidences_still_have_an_order() -> None:
    p = predictions([[0.0, 80.0], [0.0, 90.0], [0.0, 70.0]], [0, 0, 0])
    assert [m.row for m in mistakes(reduce(p), p)] == [1, 0, 2]


def test_a_certain_mistake_about_the_positive_class_comes_first() -> None:
    p = predictions(probs=np.array([0.9, 1.0, 0.3, 0.0]), labels=[0, 0, 0, 0])
    assert [m.row for m in mistakes(positive_class(reduce(p)), p)] == [1, 0]
