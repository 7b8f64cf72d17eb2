"""Intervals: the boundary at 0, groups, agreement with scipy, and CAVEATS against the coverage tables."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import calibrant
from calibrant.functional.scores import reduce
from calibrant.metrics import METRICS
from calibrant.metrics.bca import design_effect, influence
from calibrant.metrics.bootstrap import bootstrap
from calibrant.metrics.calibration_cells import _binomial_quantiles
from calibrant.metrics.intervals import CAVEATS, SHORT
from calibrant.metrics.panel import Panel

CALIBRATION = [n for n, m in METRICS.items() if m.family == "calibration" and n != "gap"]


def world(n: int, seed: int, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = 2.5 * torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return z / temperature, torch.multinomial(torch.softmax(z, 1), 1, generator=generator)[:, 0]


def test_a_calibrated_model_may_have_no_calibration_error() -> None:
    reports = [calibrant.evaluate(*world(400, seed), metrics=CALIBRATION, replicates=300) for seed in range(12)]
    for name in CALIBRATION:
        held = sum(r[name].low == 0 for r in reports)
        assert held >= 10, f"{name}: 0 is inside only {held} of 12 intervals"
    assert sum(r.extras["calibration_test"]["p"] < 0.05 for r in reports) <= 3


def test_a_miscalibrated_model_is_detected() -> None:
    report = calibrant.evaluate(*world(3000, 0, temperature=0.5))
    for name in ("ece", "ece_mass", "ece_l2", "ece_max", "ece_over", "oe", "ks", "ece_classwise", "ece_debiased"):
        low, high, value = report[name].low, report[name].high, report[name].value
        assert low is not None and high is not None and value is not None
        assert 0 < low < value < high + 1e-3, name
    assert report["ece_under"].low == 0
    assert report.extras["calibration_test"]["p"] < 0.01


def test_groups_widen_the_interval_when_items_of_a_group_agree() -> None:
    z, y = world(300, 1, temperature=0.6)
    z, y = z.repeat_interleave(10, 0), y.repeat_interleave(10)
    group = torch.arange(300).repeat_interleave(10)
    alone, grouped = calibrant.evaluate(z, y), calibrant.evaluate(z, y, group=group)
    for name in ("accuracy", "nll", "brier", "gap", "auroc", "ece", "ks"):
        a, g = alone[name], grouped[name]
        assert None not in (a.low, a.high, g.low, g.high)
        assert 2 < (g.high - g.low) / (a.high - a.low) < 5, name  # √10 ≈ 3.2


def test_influence_is_the_effect_of_one_more_item() -> None:
    panel = Panel(reduce(calibrant.predictions(*world(60, 3))))
    step = 1e-6
    for name in ("nll", "brier", "auroc", "aupr_success", "aupr_error", "aurc", "eaurc", "gap"):
        u = influence(METRICS[name], panel)
        for i in (0, 17, 59):
            w = torch.ones(2, 60, dtype=torch.float64)
            w[0, i] += step
            more, base = METRICS[name](panel, w).tolist()
            assert float(u[i]) == pytest.approx((more - base) / step, abs=1e-4), name


def test_merging_ranks_hardly_changes_replicates(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = reduce(calibrant.predictions(*world(3000, 2)))
    chosen = [METRICS[n] for n in ("auroc", "aurc", "aupr_error")]
    ((rough_value, rough),) = bootstrap([Panel(scores)], chosen, 200, 0)
    monkeypatch.setattr("calibrant.metrics.panel.CELLS", 10**9)
    ((exact_value, exact),) = bootstrap([Panel(scores)], chosen, 200, 0)
    for name in rough:
        deviation = (rough[name] - rough_value[name]) - (exact[name] - exact_value[name])
        assert float(deviation.std()) < 0.05 * float(exact[name].std()), name


def test_binomial_quantiles() -> None:
    u = torch.linspace(0.001, 0.999, 97, dtype=torch.float64)[None]
    for n, q in ((1, 0.3), (20, 0.5), (30, 0.9), (10_000, 0.0005), (10_000, 0.9995)):
        got = _binomial_quantiles(torch.tensor([float(n)]).double(), torch.tensor([q]).double(), u)
        # on the rarer of hit and miss, so quantiles of hits above one half are taken from above
        expected = stats.binom.ppf(u.numpy(), n, q) if q <= 0.5 else n - stats.binom.ppf(1 - u.numpy(), n, 1 - q)
        np.testing.assert_allclose(got.numpy(), expected)


@pytest.mark.parametrize("page", ["coverage.md", "coverage_few.md"])
def test_the_coverage_table_has_a_row_for_every_metric_and_caveats_explain_the_rest(page: str) -> None:
    rows = re.findall(r"^\| (\w+) \|(.*)\|$", (Path(__file__).parents[2] / "docs" / page).read_text(), re.M)
    names = {name for name, _ in rows} - {"metric"}
    assert names == set(METRICS)
    for name, cells in rows:
        for mark, words in (("⚠", "may cover less than 90%"), ("↑", "may cover more than 99%")):
            if mark in cells:
                said = [r.words for r in CAVEATS if name in r.metrics and words in r.words]
                assert said, f"{name} has a {mark} in {page} and no caveat says so"
    least = min((float(x) for _, cells in rows for x in re.findall(r"([\d.]+) ⚠", cells)), default=100.0)
    assert least >= float(re.search(r"\((\d+)% at the worst\)", SHORT)[1])  # type: ignore[index]


def test_design_effect_of_copies_is_their_number() -> None:
    x = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert design_effect(x.repeat(4), torch.arange(50).repeat(4)) == pytest.approx(4.0)


def test_all_items_certain_and_right() -> None:
    probs = np.zeros((40, 3))
    probs[:, 0] = 1
    report = calibrant.evaluate(probs=probs, labels=np.zeros(40, int))
    rare = stats.binomtest(0, 40).proportion_ci(0.95).high  # errors as rare as none in 40
    assert (report["ks"].low, report["ks"].high) == pytest.approx((0, rare), abs=1e-9)
    assert report["ece"].low == 0 and report["ece"].high > 0.05  # 40 of 40 do not show that it is always right


@pytest.mark.parametrize("name", ["ece", "ece_mass", "ks"])
def test_an_interval_remains_when_all_items_are_right(name: str) -> None:
    """200 of 200 right at 60%: the accuracy may be 98.2% (exact binomial bound), so the error may be 38.2 points."""
    p = np.tile([0.6, 0.4], (200, 1))
    found = calibrant.evaluate(probs=p, labels=np.zeros(200, int))[name]
    exact = stats.beta.ppf(0.025, 200, 1) - 0.6
    if name == "ks":  # its own line, of a normal walk, is a little wider
        assert exact - 0.005 < found.low <= exact
    else:
        assert found.low == pytest.approx(exact, abs=1e-9)
    assert found.high == pytest.approx(0.4)


@pytest.mark.parametrize("certain", [True, False])
def test_groups_that_are_all_right_leave_an_interval(certain: bool) -> None:
    """20 groups of 3: what is unknown is the share of groups with a miss, and the interval says how large it may be."""
    p = np.array([1.0, 0.0]) if certain else np.array([0.9, 0.1])
    report = calibrant.evaluate(probs=np.tile(p, (60, 1)), labels=np.zeros(60, int), group=np.arange(60) // 3)
    rare = stats.binomtest(0, 20).proportion_ci(0.95).high
    for name in ("ece", "ece_mass", "ks"):
        found = report[name]
        wanted = (0, rare) if certain else (0.1 - min(rare, 0.1), 0.1)
        assert (found.low, found.high) == pytest.approx(wanted, abs=1e-9), name


def test_intervals_cover_when_all_items_are_right() -> None:
    """Confidences in [0.9, 1] and a network that is right 99.9% of the time: ECE is 0.049."""
    held = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        c = rng.uniform(0.9, 1, 80)
        wrong = rng.random(80) < 0.001
        found = calibrant.evaluate(probs=np.stack([c, 1 - c], 1), labels=wrong.astype(int), metrics=["ece"])["ece"]
        held += found.low <= 0.049 <= found.high
    assert held >= 54
