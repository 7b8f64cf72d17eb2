"""Histogram binning against naive loops; the label is kept and the paper's confidence is exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import calibrant
from calibrant.errors import InputError
from calibrant.functional.scores import reduce
from calibrant.posthoc.histogram import Histogram, HistogramMass
from tests.posthoc.simulated import simulated


def test_top_label_confidence_is_the_accuracy_of_the_bin_rc_section_2() -> None:
    p = simulated(2000, 5, 2.0)
    m = Histogram(bins=15).fit(p)
    s, after = reduce(p), reduce(m.predictions(p))
    bins: dict[int, list[int]] = {}
    for i in range(p.n):
        bins.setdefault(math.ceil(float(s.confidence[i]) * 15), []).append(i)
    for items in bins.values():
        accuracy = sum(int(s.predicted[i] == p.labels[i]) for i in items) / len(items)
        assert all(float(after.confidence[i]) == accuracy for i in items)
    assert torch.equal(after.predicted, s.predicted)
    ece = calibrant.evaluate(m.predictions(p), metrics=["ece"], intervals=False, allow_reuse=True)["ece"].value
    assert ece is not None and ece < 1e-12


def test_equal_mass_bins_hold_equal_counts_and_ties_stay_together() -> None:
    p = simulated(1500, 5, 2.0)
    m = HistogramMass(bins=10).fit(p)
    assert m.summary()["count"] == [150.0] * 10
    c = torch.tensor([0.5] * 70 + [0.9] * 30)
    tied = calibrant.predictions(predicted=torch.zeros(100), confidence=c, labels=(torch.arange(100) % 2))
    m = HistogramMass(bins=10).fit(tied)
    assert len(m.summary()["count"]) == 2
    after = m.predictions(tied).confidence
    assert after is not None and set(after.tolist()) == {0.5}


def test_an_empty_bin_leaves_the_confidence_alone() -> None:
    p = calibrant.predictions(probs=[[0.95, 0.05]] * 20, labels=[0] * 15 + [1] * 5)
    m = Histogram(bins=10).fit(p)
    new = m.predictions(calibrant.predictions(probs=[[0.62, 0.38], [0.93, 0.07]], labels=[0, 0]))
    assert new.confidence is not None
    assert new.confidence.tolist() == pytest.approx([0.62, 0.75])


def test_logits_carry_the_confidence_and_share_the_rest_in_proportion() -> None:
    p = simulated(3000, 5, 2.0)
    m = HistogramMass().fit(p)
    assert p.logits is not None
    before, after = torch.softmax(p.logits, 1), torch.softmax(m(p.logits), 1)
    explicit = m.predictions(p)
    assert explicit.confidence is not None and explicit.predicted is not None
    at = explicit.predicted[:, None]
    inside = (explicit.confidence > 0) & (explicit.confidence < 1)
    assert torch.allclose(after.gather(1, at)[inside, 0], explicit.confidence[inside], atol=1e-12)
    rest_before = before.scatter(1, at, 0)
    rest_after = after.scatter(1, at, 0)
    assert torch.allclose(
        rest_before / rest_before.sum(1, keepdim=True), rest_after / rest_after.sum(1, keepdim=True), atol=1e-9
    )


def test_a_bin_without_errors_gives_finite_nll_but_the_papers_confidence() -> None:
    p = calibrant.predictions(probs=[[0.9, 0.1]] * 40, labels=[0] * 40)
    m = Histogram(bins=5).fit(p)
    assert m.predictions(p).confidence.tolist() == [1.0] * 40  # type: ignore[union-attr]
    assert p.logits is not None
    assert torch.softmax(m(p.logits), 1)[0, 0] == pytest.approx(40.5 / 41)


def test_another_class_may_rise_above_the_predicted_one_but_the_label_stays() -> None:
    probs = np.array([[0.5, 0.45, 0.05]] * 50)
    m = Histogram(bins=4).fit(calibrant.predictions(probs=probs, labels=[0] * 10 + [1] * 40))
    new = m.predictions(calibrant.predictions(probs=probs, labels=[0] * 50))
    assert new.logits is not None and new.predicted is not None
    assert int(new.logits[0].argmax()) == 1 and set(new.predicted.tolist()) == {0}
    assert reduce(new).predicted.tolist() == [0] * 50


@pytest.mark.parametrize("cls", [Histogram, HistogramMass])
def test_one_vs_rest_by_naive_loops(cls: type[Histogram]) -> None:
    p = simulated(600, 3, 2.0)
    m = cls(bins=8, kind="one_vs_rest").fit(p)
    assert p.logits is not None
    prob = torch.softmax(p.logits, 1)
    after = torch.softmax(m(p.logits), 1)
    expected = torch.empty_like(prob)
    for c in range(3):
        column = prob[:, c]
        if cls is Histogram:
            index = [min(7, max(0, math.ceil(float(v) * 8) - 1)) for v in column]
        else:
            order = sorted(range(600), key=lambda i: float(column[i]))
            index = [0] * 600
            for position, i in enumerate(order):
                index[i] = int((position + 0.5) * 8 / 600)
        for b in set(index):
            items = [i for i in range(600) if index[i] == b]
            hits = sum(int(p.labels[i]) == c for i in items)
            value = hits / len(items) if 0 < hits < len(items) else (hits + 0.5) / (len(items) + 1)
            expected[items, c] = value
    expected = expected / expected.sum(1, keepdim=True)
    assert torch.allclose(after, expected, atol=1e-10)


def test_bad_input_is_one_line() -> None:
    p = simulated(10, 5, 2.0)
    with pytest.raises(InputError, match=r"histogram needs at least 15 items .*have 10"):
        calibrant.fit("histogram", p)
    with pytest.raises(InputError, match="bins=0"):
        calibrant.fit("histogram", p, bins=0)


def test_a_map_of_a_top_1_set_takes_predictions_with_more_classes() -> None:
    """A top-1 set shows only the classes that occur in it."""
    seen = calibrant.predictions(labels=["ant", "bee"] * 20, predicted=["ant"] * 40, confidence=torch.rand(40))
    m = Histogram(bins=2).fit(seen)
    every = calibrant.predictions(torch.zeros(3, 3), ["ant", "bee", "cow"], classes=["ant", "bee", "cow"])
    assert m.record.classes == () and m.predictions(every).n == 3


def test_the_identity_keeps_the_confidence_of_an_earlier_map() -> None:
    g = torch.Generator().manual_seed(11)
    z = 3 * torch.randn(400, 4, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    binned = Histogram().fit(calibrant.predictions(z, y)).predictions(calibrant.predictions(z, y))
    same = calibrant.fit("identity", binned, allow_reuse=True).predictions(binned)
    assert binned.confidence is not None and same.confidence is not None
    assert torch.equal(same.confidence, binned.confidence) and same.predicted is binned.predicted
