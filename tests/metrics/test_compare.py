"""`compare`: verdicts, pairing, and the error for items that do not match."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import calibrant
from calibrant.errors import InputError
from calibrant.metrics import METRICS
from calibrant.metrics.compare import compare_all


def pair(n: int = 1500, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(overconfident logits, the same calibrated, labels)."""
    generator = torch.Generator().manual_seed(seed)
    z = 2.5 * torch.randn(n, 5, generator=generator, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=generator)[:, 0]
    return z / 0.4, z, y


def test_a_repaired_temperature_is_better_where_it_can_be() -> None:
    bad, good, y = pair()
    c = calibrant.compare(bad, good, y)
    assert list(c) == list(METRICS)
    for name in ("nll", "brier", "ece", "ece_mass", "ece_l2", "ece_over", "ece_classwise", "oe", "ks", "gap"):
        assert c[name].verdict == "better", name
        assert c[name].high is not None and c[name].high < 0, name
    assert c["accuracy"].difference == 0 and c["accuracy"].verdict == "within noise"
    back = calibrant.compare(good, bad, y, metrics=["nll", "ece"])
    assert back["nll"].verdict == back["ece"].verdict == "worse"


def test_pairing_reveals_a_small_difference() -> None:
    _, good, y = pair(800)
    slightly = good * 1.25
    c = calibrant.compare(good, slightly, y, metrics=["nll"])["nll"]
    alone = calibrant.evaluate(good, y, metrics=["nll"])["nll"]
    assert None not in (c.low, c.high, alone.low, alone.high)
    assert c.high - c.low < 0.5 * (alone.high - alone.low)


def test_p_values_are_uniform_without_a_difference() -> None:
    small = {"nll": 0, "ece": 0, "auroc": 0, "accuracy": 0}
    for seed in range(25):
        generator = torch.Generator().manual_seed(seed)
        z = 2 * torch.randn(300, 4, generator=generator, dtype=torch.float64)
        y = torch.multinomial(torch.softmax(z, 1), 1, generator=generator)[:, 0]
        a, b = (z + 0.7 * torch.randn(z.shape, generator=generator, dtype=torch.float64) for _ in range(2))
        c = calibrant.compare(a, b, y, metrics=list(small), replicates=200)
        for name in small:
            p = c[name].p
            small[name] += p is not None and p < 0.05
    assert all(count <= 5 for count in small.values()), small  # 25 × 5% = 1.25 expected


def test_items_that_do_not_match_are_named() -> None:
    bad, good, y = pair(50)
    other = y.clone()
    other[7] = (other[7] + 1) % 5
    a, b = calibrant.predictions(bad, y, source="a.npz"), calibrant.predictions(good, other, source="b.npz")
    with pytest.raises(InputError, match=r"a\.npz and b\.npz differ in row 7: label"):
        calibrant.compare(a, b)
    with pytest.raises(InputError, match="50 items and b has 49"):
        calibrant.compare(calibrant.predictions(bad, y), calibrant.predictions(good[1:], y[1:]))
    ids = [f"img{i}" for i in range(50)]
    a = calibrant.predictions(bad, y, ids=ids)
    b = calibrant.predictions(good, y, ids=[*ids[:3], "x", *ids[4:]])
    with pytest.raises(InputError, match="row 3: id 'img3' against 'x'"):
        calibrant.compare(a, b)


def test_three_sets() -> None:
    bad, good, y = pair(200)
    sets = [calibrant.predictions(z, y, source=s) for z, s in ((bad, "a"), (good, "b"), (good * 0.5, "c"))]
    against_first = compare_all(sets, metrics=["nll"], replicates=50)
    assert [(c.a, c.b) for c in against_first] == [("a", "b"), ("a", "c")]
    assert len(compare_all(sets, pairs=True, metrics=["nll"], replicates=50)) == 3


def test_few_items_that_agree_are_not_significant() -> None:
    z, y = np.array([[3.0, 0.0, 0.0]] * 3), np.zeros(3, int)
    few = calibrant.compare(z, z / 2, y)
    assert all(row.p is None or row.p >= 0.25 for row in few.rows)
    assert {row.verdict for row in few.rows} <= {None, "within noise"}
    many = calibrant.compare(np.tile(z, (20, 1)), np.tile(z, (20, 1)) / 2, np.zeros(60, int))["nll"]
    assert many.verdict == "worse" and many.p == pytest.approx(2.0**-59)


def test_the_interval_holds_the_difference_and_jitter_is_not_better() -> None:
    """b is a with a little noise on its logits. Shrinking has a threshold: one side fell below it, and equal-mass ECE
    was called better at p < 0.001 by an interval that did not hold the difference."""
    called = 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        labels = rng.integers(0, 3, 300)
        a = 4 * np.eye(3)[labels] + rng.normal(0, 1.5, (300, 3))
        b = a + rng.normal(0, 0.05, a.shape)
        found = calibrant.compare(
            a, b, labels, metrics=["ece", "ece_mass", "ece_l2", "ece_over", "ece_under"], replicates=100
        )
        for row in found.rows:
            assert row.low <= row.difference <= row.high, row
            called += row.verdict != "within noise"
    assert called <= 3


@pytest.mark.parametrize("n", [2, 5, 20, 400])
def test_every_metric_mirrors_and_zero_is_inside_exactly_when_p_says_so(n: int) -> None:
    """Two items had p = 0.5 and an interval without 0; a normal tail and replicates said different things."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        z, labels = rng.normal(0, 2, (n, 3)), rng.integers(0, 3, n)
        b = 1.5 * z + rng.normal(0, 0.3, z.shape)
        there, back = (calibrant.compare(*two, labels, replicates=60) for two in ((z, b), (b, z)))
        for row in there.rows:
            if row.low is not None:
                mirror = back[row.metric]
                said = (mirror.difference, mirror.low, mirror.high, mirror.p)
                assert said == pytest.approx((-row.difference, -row.high, -row.low, row.p), abs=1e-12), row
                assert (row.p < 0.05) == (row.low > 0 or row.high < 0), row
                if METRICS[row.metric].family == "calibration" and row.metric != "gap":
                    assert row.low <= row.difference <= row.high, row


@pytest.mark.parametrize("step", [1e-9, 0.5])
def test_the_order_of_rows_does_not_matter(step: float) -> None:
    """Also where many items are tied; the paired bootstrap drew items in the order in which they came."""
    rng = np.random.default_rng(4)
    z, labels = np.round(rng.normal(0, 2, (300, 3)) / step) * step, rng.integers(0, 3, 300)
    b = np.round((z + rng.normal(0, 0.5, z.shape)) / step) * step
    shuffled = rng.permutation(300)
    rows = calibrant.compare(z, b, labels, replicates=60).rows
    again = calibrant.compare(z[shuffled], b[shuffled], labels[shuffled], replicates=60)
    for row in rows:
        other = again[row.metric]
        assert (other.low, other.high, other.p) == pytest.approx((row.low, row.high, row.p), abs=1e-9), row
