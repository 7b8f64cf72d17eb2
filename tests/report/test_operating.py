"""Operating points against naive counting; the promise kept on new data."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant import decide, predictions
from calibrant.decisions.threshold import Threshold
from calibrant.errors import InputError
from calibrant.functional import Scores, reduce
from calibrant.functional.binomial import wilson
from calibrant.metrics import METRICS
from calibrant.report.operating import operating_points, round_thresholds, shortest_between
from calibrant.types import Predictions


def top1(confidence: np.ndarray, correct: np.ndarray, **fields: object) -> Scores:
    labels = np.zeros(len(confidence), int)
    p = predictions(predicted=1 - correct.astype(int), confidence=confidence, labels=labels, **fields)  # type: ignore[arg-type]
    return reduce(p)


def test_every_point_against_counting(make: Callable[..., Predictions]) -> None:
    scores = reduce(make(n=500))
    points = operating_points(scores)
    assert len(points.threshold) <= 1000
    assert np.all(np.diff(points.threshold) > 0)
    assert points.accepted[0] == points.n  # the first accepts everything
    confidence, correct = scores.confidence.tolist(), scores.correct.tolist()
    for i, t in enumerate(points.threshold.tolist()):
        kept = [j for j, c in enumerate(confidence) if c >= t]
        assert points.accepted[i] == len(kept) > 0
        assert points.correct[i] == sum(correct[j] for j in kept)
        assert points.confidence[i] == pytest.approx(sum(confidence[j] for j in kept) / len(kept), abs=1e-12)


def test_ece_of_the_accepted_is_the_metric_of_the_accepted(make: Callable[..., Predictions]) -> None:
    p = make(n=400)
    scores = reduce(p)
    points = operating_points(scores)
    for i in range(0, len(points.threshold), 37):
        kept = torch.nonzero(scores.confidence >= points.threshold[i])[:, 0]
        assert points.ece[i] == pytest.approx(float(METRICS["ece"](reduce(p.take(kept)))), abs=1e-12)


def test_the_chance_level_is_the_mean_ece_of_calibrated_models() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.4, 1, 600)
    scores = [top1(confidence, rng.random(600) < confidence) for _ in range(200)]
    seen = np.mean([float(METRICS["ece"](s)) for s in scores])
    assert operating_points(scores[0]).ece_chance[0] == pytest.approx(seen, rel=0.05)


@pytest.mark.parametrize("target", [0.7, 0.8, 0.9])
def test_answers_accept_as_much_as_any_threshold_could(make: Callable[..., Predictions], target: float) -> None:
    scores = reduce(make(n=3000))
    points = operating_points(scores)
    found = points.at_accuracy(target)
    assert found is not None
    best = 0
    for t in scores.confidence.tolist():
        kept = scores.confidence >= t
        if float(scores.correct[kept].double().mean()) >= target:
            best = max(best, int(kept.sum()))
    assert points.accepted[found] == best


@pytest.mark.parametrize("tied", [False, True])
def test_a_certain_threshold_is_the_one_that_decide_chooses(make: Callable[..., Predictions], tied: bool) -> None:
    p = make(n=3000)
    if tied:
        scores = reduce(p)
        p = predictions(labels=p.labels, predicted=scores.predicted, confidence=scores.confidence.numpy().round(2))
    points = operating_points(reduce(p))
    found = 0
    for goal in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98):
        at = points.at_accuracy(goal, sure=True)
        try:
            rule = decide(p, accuracy=goal)
        except InputError:
            assert at is None
            continue
        found += 1
        assert at is not None and isinstance(rule, Threshold)
        assert points.threshold[at] == float(rule.threshold)
        assert points.coverage[at] == rule.record.certificate["coverage"]
    assert found > 2
    assert points.at_accuracy(0.555, sure=True) == points.at_accuracy(0.56, sure=True)  # the next stored target


def test_a_certain_threshold_counts_groups() -> None:
    """Each item four times, as one group, promises what `decide` does, no more than the items alone."""
    rng = np.random.default_rng(3)
    confidence = rng.beta(4, 1, 1000)
    correct = rng.random(1000) < confidence
    alone = operating_points(top1(confidence, correct))
    four, group = (np.repeat(a, 4) for a in (confidence, np.arange(1000)))
    grouped = operating_points(top1(four, np.repeat(correct, 4), group=group))
    naive = operating_points(top1(four, np.repeat(correct, 4)))
    shares = [float(p.coverage[p.at_accuracy(0.85, sure=True)]) for p in (alone, grouped, naive)]  # type: ignore[index]
    wrong = 1 - np.repeat(correct, 4).astype(int)
    items = predictions(predicted=wrong, confidence=four, labels=np.zeros(4000, int), group=group)
    rule = decide(items, accuracy=0.85)
    assert shares[1] == rule.record.certificate["coverage"] and shares[0] - 0.1 < shares[1] < shares[0]
    assert shares[2] > shares[0] + 0.05


def test_groups_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(40), 25)
    correct = np.repeat(rng.random(40) < 0.7, 25)  # whole groups are right or wrong
    confidence = rng.uniform(0.5, 1, 1000)
    alone, grouped = (
        operating_points(top1(confidence, correct)),
        operating_points(top1(confidence, correct, group=group)),
    )
    width = (alone.accuracy_high - alone.accuracy_low)[0]
    wider = (grouped.accuracy_high - grouped.accuracy_low)[0]
    assert wider / width == pytest.approx(5, rel=0.1)  # √25
    right = operating_points(top1(confidence, np.ones(1000, bool), group=group))  # 40 groups, not 1,000 items
    assert right.accuracy_low[0] == pytest.approx(float(wilson(40, 40)[0]))


@given(below=st.floats(0, 1), gap=st.floats(1e-12, 0.5))
@settings(max_examples=300, deadline=None)
def test_shortest_decimal(below: float, gap: float) -> None:
    upto = min(1.0, below + gap)
    if upto <= below:
        return
    t = shortest_between(below, upto)
    assert below < t <= upto
    digits = len(repr(t).split(".")[1]) if "e" not in repr(t) else 17
    if 2 <= digits < 15:  # one digit less would not fit in between
        coarse = np.floor(upto * 10 ** (digits - 1)) / 10 ** (digits - 1)
        assert not below < coarse <= upto


def test_round_thresholds_do_not_depend_on_data() -> None:
    grid = round_thresholds(10)
    assert grid[0] == 0
    assert grid[1] == 0.11  # no top label of ten classes is surer of less than 0.1
    assert {0.5, 0.95, 0.99, 0.999, 0.9999}.issubset(grid.tolist())
    assert len(round_thresholds(None)) < 160


@pytest.mark.parametrize("confidence", [[1.0], [0.0], [0.5, 0.5, 0.5], [1.0, 1.0]])
def test_extremes(confidence: list[float]) -> None:
    points = operating_points(top1(np.array(confidence), np.ones(len(confidence), bool)))
    assert points.accepted[0] == len(confidence)
    assert np.isfinite(points.ece).all()
