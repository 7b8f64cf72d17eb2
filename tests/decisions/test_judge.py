"""Judging needs other items, gives exact numbers and intervals, and says whether a promise is broken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, ttest_1samp

import calibrant
from calibrant.decisions.judge import below, judge
from calibrant.errors import SplitError
from calibrant.report.plots import set_sizes


def sample(n: int, seed: int, scale: float = 1.0) -> calibrant.Predictions:
    g = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(n, 5, generator=g)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]
    return calibrant.predictions(scale * z, y)


def test_thresholds() -> None:
    rule, test = calibrant.decide(sample(3000, 0), accuracy=0.9), sample(2000, 1)
    found = judge(rule, test)
    d = rule.decisions(test)
    right = (d.predicted == test.labels)[d.accepted]
    exact = binomtest(int(right.sum()), len(right)).proportion_ci(method="exact")
    e = found.estimates["accuracy_accepted"]
    assert (e.low, e.high) == pytest.approx((exact.low, exact.high)) and e.value == float(right.double().mean())
    assert found.estimates["accepted"].value == float(d.accepted.double().mean())
    assert "in line with the promise" in found.sentence
    assert "the promise is broken here" in judge(rule, sample(2000, 2, 5.0)).sentence


def test_sets() -> None:
    rule, test = calibrant.decide(sample(3000, 0), set_coverage=0.9, method="aps"), sample(2000, 1)
    found, sets = judge(rule, test), rule.decisions(test).sets
    assert sets is not None
    hit, size = sets.gather(1, test.labels[:, None])[:, 0], sets.sum(1)
    assert found.estimates["coverage"].value == float(hit.double().mean())
    assert found.estimates["set_size"].value == pytest.approx(float(size.double().mean()))
    assert found.estimates["empty_sets"].value == float((size == 0).double().mean())
    assert sum(row["items"] for row in found.tables["by_size"]) == 2000
    for row in found.tables["by_size"]:
        assert row["coverage"].value == float(hit[size == int(row["size"])].double().mean())
    held, missed = set_sizes(found.tables["by_size"]).containers
    assert [round(b.get_height()) for b in held] == torch.bincount(size[hit])[1:].tolist()
    assert sum(b.get_height() for b in missed) == pytest.approx(int((~hit).sum()))
    for k, row in enumerate(found.tables["by_class"]):
        assert row["set_size"].value == pytest.approx(float(size[test.labels == k].double().mean()))
    assert "in line with the promise" in found.sentence


def test_costs() -> None:
    costs = torch.cat([1 - torch.eye(5), torch.full((5, 1), 0.2)], 1)
    rule = calibrant.decide(sample(500, 0), costs=costs, actions=[*"abcde", "abstain"])
    test = sample(2000, 1)
    found, d = judge(rule, test), rule.decisions(test)
    assert found.estimates["cost"].value == pytest.approx(float(costs[test.labels, d.action].double().mean()))
    assert found.estimates["saved"].value > 0 and found.estimates["accepted"].value < 1


def test_a_promise_on_average_is_not_broken_by_a_valid_rule() -> None:
    """Sets chosen on 100 items cover 84 to 95%; 20,000 items show that exactly, and break nothing."""
    test = sample(20_000, 99)
    rules = [calibrant.decide(sample(100, s), set_coverage=0.9) for s in range(40)]
    assert sum(judge(rule, test).broken for rule in rules) <= 4  # 2.5% each
    assert judge(rules[0], sample(2000, 2, 5.0)).broken


@pytest.mark.parametrize("goal", [{"accuracy": 0.8}, {"set_coverage": 0.9}])
def test_one_bad_group_breaks_a_promise_by_group(goal: dict[str, float]) -> None:
    g = np.repeat(["rome", "oslo"], [500, 3500])
    cal, test = sample(4000, 0), sample(4000, 1)
    rule = calibrant.decide(calibrant.predictions(cal.logits, cal.labels, group=g), by="group", **goal)
    good = judge(rule, calibrant.predictions(test.logits, test.labels, group=g))
    assert not good.broken and {row["group"] for row in good.tables["by_group"]} == {"rome", "oslo"}
    assert test.logits is not None
    labels = torch.where(torch.arange(4000) < 500, test.logits.argmin(1), test.labels)
    bad = judge(rule, calibrant.predictions(test.logits, labels, group=g))
    assert bad.broken and "the promise is broken here" in bad.sentence


def test_items_of_the_choice_and_of_the_map_are_refused() -> None:
    p, other = sample(1000, 0), sample(1000, 1)
    fitted = calibrant.fit("temperature", other)
    rule = calibrant.decide(p, accuracy=0.8, map=fitted)
    for reused in (p, p.take(torch.arange(999, -1, -1)), p.take(torch.arange(500)), p.take(torch.arange(999)), other):
        with pytest.raises(SplitError, match="very items"):
            judge(rule, reused)
    judge(rule, sample(1000, 2))
    assert judge(rule, p, allow_reuse=True).reused


def test_the_mean_loss_of_the_accepted_is_judged(tmp_path: Path) -> None:
    table = 2.0 * (1 - torch.eye(5))
    table[0] *= 3
    chosen = calibrant.decide(sample(3000, 0), risk=0.5, loss=table)
    chosen.save(tmp_path / "rule")
    rule, test = calibrant.load(tmp_path / "rule"), sample(3000, 1)
    d, found = rule.decisions(test), judge(rule, test)
    paid = [float(table[y, k]) for y, k, a in zip(test.labels, d.predicted, d.accepted, strict=True) if a]
    assert found.estimates["loss_accepted"].value == pytest.approx(np.mean(paid))
    assert not found.broken and "at most 0.5 was promised: in line" in found.sentence
    assert judge(rule, sample(3000, 2, 5.0)).broken


def grouped(p: calibrant.Predictions, each: int) -> calibrant.Predictions:
    return calibrant.predictions(p.logits, p.labels, group=torch.arange(p.n) // each)


def test_a_promise_on_average_over_groups_is_not_broken_by_a_valid_rule() -> None:
    """Groups of one item: the same 84 to 95% as above, and 10,000 groups show it exactly."""
    test = grouped(sample(10_000, 99), 1)
    rules = [calibrant.decide(grouped(sample(100, s), 1), set_coverage=0.9) for s in range(40)]
    assert sum(judge(rule, test).broken for rule in rules) <= 4  # 2.5% each
    assert judge(rules[0], grouped(sample(2000, 2, 5.0), 1)).broken


def test_means_are_compared_by_students_test() -> None:
    """Scipy's test with one further value of 1; the promise of a rule from few groups varies more."""
    x = torch.rand(40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = ttest_1samp([*x.tolist(), 1.0], 0.6, alternative="less").pvalue
    assert below(x, 0.6, None) == pytest.approx(found) and found < below(x, 0.6, 40) < below(x, 0.6, 5)
    assert below(torch.ones(3, dtype=torch.float64), 0.9, None) == 1.0
    assert below(torch.zeros(2, dtype=torch.float64), 0.9, None) > 0.025 > below(torch.zeros(8).double(), 0.9, None)


@pytest.mark.parametrize("goal", [{"accuracy": 0.9}, {"set_coverage": 0.9}])
def test_no_verdict_where_the_promise_is_about_something_else(goal: dict[str, float]) -> None:
    items, groups = sample(3000, 0), grouped(sample(3000, 0), 3)
    for chosen_on, judged_on, verdict in (
        (items, sample(2000, 2, 5.0), True),
        (groups, grouped(sample(2000, 2, 5.0), 3), True),
        (items, grouped(sample(2000, 2, 5.0), 3), False),
        (groups, sample(2000, 2, 5.0), False),
    ):
        found = judge(calibrant.decide(chosen_on, **goal), judged_on)
        assert found.broken is (verdict or None) and ("no verdict, because" in found.sentence) != verdict


def test_one_bad_class_breaks_a_promise_by_class_over_groups() -> None:
    rule = calibrant.decide(grouped(sample(4000, 0), 2), set_coverage=0.9, by="class")
    p = sample(600, 1)
    keep = (p.labels != 0) | ((p.labels == 0).cumsum(0) <= 8)
    few = p.take(keep.nonzero()[:, 0])
    assert not judge(rule, grouped(few, 2)).broken
    z = few.logits.clone()
    z[few.labels == 0, 0] -= 30
    found = judge(rule, grouped(calibrant.predictions(z, few.labels), 2))
    assert found.tables["by_class"][0]["coverage"].value == 0 and found.broken
    assert found.estimates["coverage"].high > 0.9  # the mean over all groups hides it


def test_one_bad_class_breaks_a_promise_of_losses_by_class() -> None:
    table = 2.0 * (1 - torch.eye(5))
    table[0] *= 3
    for each in (None, 1):
        cal, test = sample(8000, 0), sample(3000, 1)
        rule = calibrant.decide(cal if each is None else grouped(cal, each), risk=0.5, loss=table, by="class")
        d = rule.decisions(test)
        ones = d.accepted & (d.predicted == 1)
        keep = ~ones | (ones.cumsum(0) <= 15)
        y = torch.where(ones, 0, test.labels)[keep]
        bad, good = (calibrant.predictions(test.logits[keep], labels) for labels in (y, test.labels[keep]))
        good, bad = (p if each is None else grouped(p, each) for p in (good, bad))
        assert not judge(rule, good).broken and judge(rule, bad).broken
        assert judge(rule, bad).estimates["loss_accepted"].low < 0.5
