"""Thresholds keep their promise on new items and waste little, also with ties, members and top-1 files."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import binom

import calibrant
from benchmarks.decide import cells
from calibrant.decisions.threshold import (
    Ordered,
    Threshold,
    binomial_p,
    candidates,
    hoeffding_bentkus_p,
    just_above,
    passes,
)
from calibrant.errors import InputError, SplitError

SETS = 800
NOISE = 3 * np.sqrt(0.05 * 0.95 / SETS)  # Monte-Carlo error of a share of 5%


def risk_above(t: float, shape: float, power: float) -> float:
    """P(wrong | confidence ≥ t) where confidence is Beta(shape, 1) and P(right | c) = c^power."""
    total = 1 - t**shape
    right = shape / (shape + power) * (1 - t ** (shape + power))
    return 1 - right / total


def draw(rng: np.random.Generator, n: int, shape: float, power: float, digits: int | None) -> Ordered:
    c = rng.beta(shape, 1, n)
    loss = (rng.random(n) > c**power).astype(float)
    return Ordered.of(c if digits is None else c.round(digits), loss)


@pytest.mark.parametrize(
    ("n", "shape", "power", "accuracy", "found"),
    [(300, 8, 1, 0.9, 0.9), (1000, 4, 2, 0.9, 0.75), (1000, 8, 1, 0.95, 0.8), (300, 3, 0.2, 0.95, 0.45)],
)
def test_the_promise_holds_at_its_level(n: int, shape: float, power: float, accuracy: float, found: float) -> None:
    """`found`: the share of sets with a threshold; in the last setting one test of the best size has 72%."""
    rng = np.random.default_rng(n)
    broken = accepted = 0
    for _ in range(SETS):
        rule = draw(rng, n, shape, power, None).choose(1 - accuracy, 0.05)
        accepted += rule.count > 0
        broken += rule.count > 0 and risk_above(rule.threshold, shape, power) > 1 - accuracy
    assert broken / SETS <= 0.05 + NOISE
    assert accepted / SETS > found


def test_the_promise_holds_with_ties() -> None:
    """Confidence of one digit: P(right | c) = c exactly, and a threshold takes or leaves whole runs."""
    rng = np.random.default_rng(0)
    values, broken = np.arange(1, 11) / 10, 0
    for _ in range(SETS):
        c = rng.choice(values, 400)
        found = Ordered.of(c, (rng.random(400) > c).astype(float)).choose(0.2, 0.05)
        broken += found.count > 0 and 1 - values[values >= found.threshold].mean() > 0.2
    assert 0 < broken / SETS <= 0.05 + NOISE


def test_the_promise_holds_in_each_class_and_group() -> None:
    shares = cells(150)
    assert len(shares) == 6 and max(shares.values()) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 150)


def test_little_is_wasted() -> None:
    """At n = 5,000 the accepted are at most half a point more accurate than without correction for the search."""
    rng = np.random.default_rng(1)
    for shape, power, accuracy in ((4, 2, 0.9), (8, 1, 0.95), (4, 1, 0.95)):
        with_it, without = [], []
        for _ in range(100):
            items = draw(rng, 5000, shape, power, None)
            found = items.choose(1 - accuracy, 0.05)
            c = candidates(items.confidence, 1 - accuracy, 0.05)
            alone = np.flatnonzero(binomial_p(items.total[c.count], c.count, 1 - accuracy) <= 0.05)
            boldest = c.threshold[alone].min()
            with_it.append(1 - risk_above(found.threshold, shape, power) if found.count else 1.0)
            without.append(1 - risk_above(boldest, shape, power))
        assert np.mean(with_it) - np.mean(without) < 0.005


def test_any_bounded_loss_keeps_its_risk() -> None:
    rng = np.random.default_rng(2)
    broken = accepted = 0
    for _ in range(500):
        c = rng.random(1000)
        loss = rng.beta(2 * (1 - c) + 1e-9, 2 * c + 1e-9)  # mean 1 − c
        found = Ordered.of(c, loss, hoeffding_bentkus_p).choose(0.2, 0.05)
        accepted += found.count > 0
        broken += found.count > 0 and (1 - found.threshold) / 2 > 0.2
    assert broken / 500 <= 0.05 + 2 * NOISE and accepted > 450


def test_p_values_by_the_formulas() -> None:
    for count, errors, risk in product((1, 7, 60), (0, 1, 5), (0.05, 0.3)):
        if errors > count:
            continue
        p = binomial_p(np.array([float(errors)]), np.array([count]), risk)[0]
        assert p == pytest.approx(binom.cdf(errors, count, risk))
        mean = min(errors / count, risk)
        h = mean * np.log(mean / risk) if mean else 0.0
        h += (1 - mean) * np.log((1 - mean) / (1 - risk))
        naive = min(np.exp(-count * h), np.e * binom.cdf(errors, count, risk), 1.0)
        assert hoeffding_bentkus_p(np.array([float(errors)]), np.array([count]), risk)[0] == pytest.approx(naive)


def test_the_fallback_procedure_by_hand() -> None:
    share = np.array([0.5, 0.0, 0.5, 0.0])
    assert passes(np.array([0.02, 0.02, 0.05, 0.05]), share, 0.05).tolist() == [True, True, True, True]
    assert passes(np.array([0.03, 0.0, 0.03, 0.0]), share, 0.05).tolist() == [False, True, False, True]
    assert passes(np.array([0.02, 0.03, 0.025, 0.026]), share, 0.05).tolist() == [True, False, True, False]
    with_zero = passes(np.array([0.03, 1e-9]), np.array([0.5, 0.0]), 0.05)
    assert with_zero.tolist() == [False, False]


def test_thresholds_are_short_and_above() -> None:
    rng = np.random.default_rng(3)
    for x in [*rng.random(300), *(1 - 10.0 ** -rng.uniform(1, 15, 100)), 0.5, 0.25, 0.0, 0.9999, 1 - 2**-53]:
        t = just_above(float(x))
        assert t > x and t - x <= 1.01e-3 * min(max(x, 1e-8), 1 - x) + 1e-15
    assert just_above(1.0) == np.inf and just_above(-1) == 0.0 and just_above(0.83123) == 0.8313


def sample(n: int, k: int, seed: int, members: int = 0, scale: float = 4.0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(n, k, generator=g)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]
    return (z + 0.1 * torch.randn(members, n, k, generator=g) if members else z), y


@pytest.mark.parametrize("k", [2, 10, 1000])
@pytest.mark.parametrize("members", [0, 3])
def test_from_two_to_a_thousand_classes_and_members(k: int, members: int) -> None:
    z, y = sample(800, k, k, members, 4 if k < 100 else 12)
    rule = calibrant.decide(z, y, accuracy=0.8)
    d = rule(z)
    right = (d.predicted == y)[d.accepted].double().mean()
    assert d.accepted.shape == (800,) and float(right) > 0.8 and d.sets is None and d.action is None
    assert rule.sentence.startswith("accept when confidence ≥ ") and "guaranteed with 95% confidence" in rule.sentence
    assert float(d.accepted.double().mean()) == pytest.approx(rule.record.certificate["coverage"])


def test_top1_files_have_thresholds() -> None:
    z, y = sample(1000, 5, 1)
    p = torch.softmax(z.double(), 1)
    top = calibrant.predictions(labels=y, predicted=p.argmax(1), confidence=p.amax(1))
    a, b = calibrant.decide(top, accuracy=0.9), calibrant.decide(z, y, accuracy=0.9)
    assert torch.equal(a.tensors()["threshold"], b.tensors()["threshold"])
    assert torch.equal(a.decisions(top).accepted, b(z).accepted)


def test_the_surest_share() -> None:
    z, y = sample(1000, 5, 2)
    rule = calibrant.decide(z, y, accept=0.8)
    assert float(rule(z).accepted.double().mean()) == pytest.approx(0.8, abs=0.002)
    low, high = rule.record.certificate["new"]
    assert 0.76 < low < 0.8 < high < 0.84
    assert calibrant.decide(z, y, accept=0.8, by="class").record.certificate["new"] is None  # no such exact law
    all_tied = calibrant.predictions(labels=y, predicted=y, confidence=torch.full((1000,), 0.5))
    assert calibrant.decide(all_tied, accept=0.3).record.certificate["new"] is None  # and none at threshold 0
    tied = calibrant.predictions(labels=y, predicted=y, confidence=torch.where(y == 0, 1.0, 0.5))
    rule = calibrant.decide(tied, accept=0.3)
    assert torch.equal(rule.decisions(tied).accepted, y == 0)


def test_a_given_threshold_has_its_exact_bound(tmp_path: Path) -> None:
    """Clopper–Pearson by its definition: with the promised accuracy, as many right answers would be luck of 5%."""
    z = 3 * torch.randn(2000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    p = torch.softmax(z, 1)
    y = torch.multinomial(p, 1, generator=torch.Generator().manual_seed(1))[:, 0]
    rule = calibrant.load(calibrant.decide(z, y, threshold=0.83).save(tmp_path / "rule"))
    kept = p.amax(1) >= 0.83
    count, right = int(kept.sum()), int((p.argmax(1) == y)[kept].sum())
    promised = 1 - rule.record.certificate["risk"]
    assert binom.sf(right - 1, count, promised) == pytest.approx(0.05)
    assert torch.equal(rule(z).accepted, kept)
    assert f"right at least {np.floor(1e4 * promised) / 100:g}% of the time" in rule.sentence
    assert "the threshold was given, not searched for" in rule.sentence
    assert calibrant.decide(z, y, threshold=0, guarantee=0.9).record.certificate["coverage"] == 1
    assert "not searched" not in calibrant.decide(z, y, accept=0.5).sentence


def test_by_class_and_by_group(tmp_path: Path) -> None:
    z, y = sample(4000, 3, 3)
    group = np.array(["paris", "rome"])[np.arange(4000) % 2]
    z = torch.where(torch.arange(4000)[:, None] % 2 == 0, z, 3 * z)  # rome is overconfident
    p = calibrant.predictions(z, y, group=group)
    rule = calibrant.decide(p, accuracy=0.9, by="group")
    paris, rome = rule.tensors()["threshold"].tolist()
    assert rome > paris and rule.groups == ("paris", "rome")
    again = calibrant.load(rule.save(tmp_path / "rule"))
    d = again(z[:2], group=["rome", "paris"])
    both = again(z[:2], group=["paris", "rome"])
    assert isinstance(again, Threshold) and d.accepted.shape == both.accepted.shape == (2,)
    with pytest.raises(InputError, match="group 'milan' was not among the 2 groups"):
        again(z[:2], group=["rome", "milan"])
    with pytest.raises(InputError, match="by group"):
        again(z[:2])
    rule = calibrant.decide(calibrant.predictions(z, y), accuracy=0.8, by="class")
    assert rule.tensors()["threshold"].shape == (3,) and "in each class" in rule.sentence
    one_each = calibrant.decide(torch.eye(3).repeat(60, 1) * 9, torch.arange(180) % 3, accuracy=0.95, by="class")
    assert one_each.record.certificate["coverage"] == 1.0


def test_a_map_in_front_is_part_of_the_rule(tmp_path: Path) -> None:
    z, y = sample(3000, 4, 4)
    for method in ("temperature", "histogram_mass"):
        fitted = calibrant.fit(method, 3 * z[:1000], y[:1000])
        rule = calibrant.decide(3 * z[1000:2000], y[1000:2000], accuracy=0.9, map=fitted)
        again = calibrant.load(rule.save(tmp_path / method))
        test = calibrant.predictions(3 * z[2000:], y[2000:])
        after = fitted.predictions(test)
        confidence = after.confidence if after.confidence is not None else torch.softmax(after.logits, 1).amax(1)
        expected = confidence >= rule.tensors()["threshold"][0]
        assert torch.equal(rule.decisions(test).accepted, expected) and torch.equal(
            again(3 * z[2000:]).accepted, expected
        )
        with pytest.raises(SplitError, match="fitted on these very items"):
            calibrant.decide(3 * z[:1000], y[:1000], accuracy=0.9, map=fitted)
        with pytest.raises(SplitError, match="chosen on these very items"):
            rule.refuse_reuse(calibrant.predictions(3 * z[1000:2000], y[1000:2000]))
        rule.refuse_reuse(test)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"accuracy": 1.0}, "accuracy=1.0 must lie between 0 and 1"),
        ({"accuracy": float("nan")}, "between 0 and 1"),
        ({"accept": 0}, "accept=0 must"),
        ({"risk": 1.5}, "the largest loss, 1"),
        ({"accuracy": 0.9, "guarantee": 1}, "guarantee=1 must"),
        ({"accuracy": 0.9, "accept": 0.5}, "give one of"),
        ({}, "give one of"),
        ({"threshold": 1.5}, "threshold=1.5 must be a confidence between 0 and 1"),
        ({"threshold": 1.0}, "no item has a confidence of 1 or more, .* the surest has 0.9"),
        ({"threshold": 0.5, "by": "class"}, "by does not belong to threshold"),
        ({"accuracy": 0.99}, "the best reachable with these 300 items is an accuracy of 9"),
        ({"accuracy": 0.99}, "on other items .a target taken from this message promises nothing about these"),
        ({"accuracy": 0.98, "by": "class"}, "items of each class are too few .* 149 are needed"),
        ({"accuracy": 0.999}, "300 items are too few .* 2995 are needed"),
        ({"accuracy": 0.9, "by": "colour"}, "'class' or 'group'"),
        ({"accuracy": 0.9, "by": "group"}, "have no groups"),
        ({"risk": 0.1, "loss": torch.ones(3, 3)}, "4 × 4"),
        ({"risk": 0.1, "loss": -torch.ones(4, 4)}, "0 or more"),
        ({"accuracy": 0.9, "loss": torch.ones(4, 4)}, "loss does not belong to accuracy"),
    ],
)
def test_bad_input(asked: dict[str, object], message: str) -> None:
    z, y = sample(300, 4, 5)
    with pytest.raises(InputError, match=message) as caught:
        calibrant.decide(z, y, **asked)
    assert "\n" not in str(caught.value)


def test_splits_are_checked() -> None:
    z, y = sample(300, 4, 6)
    with pytest.raises(SplitError, match="test"):
        calibrant.decide(calibrant.predictions(z, y, split="test"), accept=0.5)
    with pytest.raises(InputError, match="chosen for 4 classes"):
        calibrant.decide(z, y, accept=0.5)(z[:, :3])


def test_classes_that_are_never_predicted_or_new() -> None:
    z, y = sample(300, 3, 8)
    z[:, 2] = -9
    for goal in ({"accept": 0.5}, {"accuracy": 0.04}, {"accuracy": 0.6}):
        rule = calibrant.decide(z, y, by="class", **goal)
        assert rule.tensors()["threshold"][2] == torch.inf and rule.record.certificate["risk"] < 1
    top = calibrant.predictions(labels=y, predicted=z.argmax(1), confidence=torch.softmax(z, 1).amax(1))
    rule = calibrant.decide(top.take((y < 2).nonzero()[:, 0]), accept=0.5, by="class")
    new = calibrant.predictions(labels=[0], predicted=[7], confidence=[0.9])
    with pytest.raises(InputError, match="class 7 was not among the 2"):
        rule.decisions(new)


def test_reuse_on_purpose_is_recorded() -> None:
    z, y = sample(600, 4, 9)
    fitted = calibrant.fit("temperature", z, y)
    assert calibrant.decide(z, y, accept=0.5, map=fitted, allow_reuse=True).record.reuse
    assert not calibrant.decide(z, y, accept=0.5).record.reuse


def test_a_loss_table_and_the_same_as_plain_errors() -> None:
    z, y = sample(2000, 4, 7)
    plain = calibrant.decide(z, y, accuracy=0.9)
    table = calibrant.decide(z, y, risk=0.2, loss=2 * (1 - torch.eye(4)))
    assert torch.equal(plain.tensors()["threshold"], table.tensors()["threshold"])
    assert "mean loss of accepted answers is at most 0.2" in table.sentence
