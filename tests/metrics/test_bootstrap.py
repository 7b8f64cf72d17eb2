"""Bootstraps of cells and groups against bootstraps of items, closed forms against draws, the test on bins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import calibrant
from calibrant.functional.binning import equal_width
from calibrant.functional.scores import reduce
from calibrant.metrics import METRICS, bootstrap
from calibrant.metrics.bca import acceleration, bca, bca_of_mean
from calibrant.metrics.bootstrap import Groups, counts, draws
from calibrant.metrics.calibration import GapError
from calibrant.metrics.calibration_cells import cells
from calibrant.metrics.calibration_intervals import calibration_test
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.panel import Metric, Panel, UnitPanel
from calibrant.metrics.proper import Mean
from calibrant.metrics.refinement import Ranked
from calibrant.metrics.stream import state
from calibrant.metrics.stream_report import report

RANKED = [n for n, m in METRICS.items() if m.family == "refinement"]


def sample(n: int, ties: bool = False, seed: int = 0) -> calibrant.Predictions:
    g = torch.Generator().manual_seed(seed)
    z = 2.5 * torch.randn(n, 5, generator=g, dtype=torch.float64)
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    return calibrant.predictions(z.round() if ties else z, y)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [60, 3000])
def test_intervals_from_cells_equal_an_item_bootstrap(n: int, ties: bool) -> None:
    """Deviations of 600 plain draws of items, each metric on items, have the spread that the interval claims."""
    scores = reduce(sample(n, ties))
    report = calibrant.evaluate(sample(n, ties), metrics=RANKED, replicates=2000)
    rng = np.random.default_rng(1)
    weights = torch.from_numpy(rng.multinomial(n, np.full(n, 1 / n), size=600)).double()
    panel = Panel(scores).reweighted(weights)
    for name in RANKED:
        e = report[name]
        if e.method is None or "bootstrap" not in e.method:
            continue
        low, high = np.nanquantile(METRICS[name](panel).numpy(), [0.025, 0.975])
        assert (e.high - e.low) == pytest.approx(high - low, rel=0.25), name
        assert e.low <= e.value <= e.high or n < 100, name


@pytest.mark.parametrize("per_cell", [1, 3, 400])
def test_counts_of_draws_are_multinomial(per_cell: int) -> None:
    counts = torch.tensor([1.0, 2, 3, 4, 5]).double() * per_cell
    drawn = torch.cat(list(draws(counts, 20_000, np.random.default_rng(0))))
    n, p = float(counts.sum()), counts / counts.sum()
    assert bool((drawn.sum(1) == n).all())
    torch.testing.assert_close(drawn.mean(0), n * p, rtol=0.02, atol=0.03)
    expected = n * (torch.diag(p) - p[:, None] * p)
    torch.testing.assert_close(torch.cov(drawn.T), expected, rtol=0.05, atol=0.02 * n)


@pytest.mark.parametrize("draw", ["exponential", "lognormal", "normal"])
def test_bca_of_draws_and_its_closed_form_are_scipy_s(draw: str) -> None:
    x = getattr(np.random.default_rng(3), draw)(size=150)
    found = stats.bootstrap((x,), np.mean, n_resamples=20_000, rng=np.random.default_rng(1)).confidence_interval
    mean, u = float(x.mean()), torch.tensor((x - x.mean()) / 150)
    replicates = torch.cat([w @ torch.tensor(x) / 150 for w in counts(150, 150, 20_000, 0)])
    width = found.high - found.low
    drawn = bca(mean, replicates, acceleration(u, None), 0.95)
    closed = bca_of_mean(mean, float((u**2).sum()), float((u**3).sum()), 0.95)
    assert drawn == pytest.approx((found.low, found.high), abs=0.03 * width)
    assert closed == pytest.approx((found.low, found.high), abs=0.03 * width)


def test_one_outlier_does_not_break_the_closed_form() -> None:
    """Three labels of a thousand called impossible: the largest |a| that a mean can have is 1/6."""
    u = np.eye(1000)[0] - 1 / 1000
    low, high = bca_of_mean(0.0, (u**2).sum(), (u**3).sum(), 0.95)
    assert -1.3 < low < 0 < high < 6


@pytest.mark.parametrize("bins", [15, 5])
@pytest.mark.parametrize("n", [40, 2000])
def test_p_from_bins_equals_p_from_items(n: int, bins: int) -> None:
    """Against answers drawn item by item, which is the definition."""
    rng = np.random.default_rng(n + bins)
    gaps = []
    for seed in range(15):
        c = rng.beta(4, 1, n)
        hit = rng.random(n) < c**1.15
        at = equal_width(torch.tensor(c), bins)
        p = calibration_test(cells(at, torch.tensor(c), torch.tensor(hit)), Resampling(seed, 1000))["p"]
        member = np.eye(bins)[at.numpy()]
        simulated = np.abs(((rng.random((1000, n)) < c) - c) @ member).sum(1)
        gaps.append(p - np.mean(simulated >= np.abs((c - hit) @ member).sum()))
    assert abs(np.mean(gaps)) < 0.02 and np.max(np.abs(gaps)) < 0.08


def test_one_group_has_no_test() -> None:
    p = sample(50)
    report = calibrant.evaluate(p.logits, p.labels, group=[0] * 50)
    assert report.extras["calibration_test"]["p"] is None


def test_a_new_error_needs_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Value against a loop over bins; interval, difference, groups and stream come with it."""
    error = GapError(vector=lambda delta, cells: cells.mean_confidence * delta)
    monkeypatch.setitem(METRICS, "weighted", Metric("weighted", "weighted", "calibration", "low", error))
    p = sample(3000)
    scores = reduce(p)
    conf, hit = scores.confidence.numpy(), scores.correct.numpy()
    bins = np.clip(np.ceil(conf * 15) - 1, 0, 14)
    wanted = sum(conf[bins == b].mean() * abs((conf - hit)[bins == b].sum()) / 3000 for b in set(bins))
    found = calibrant.evaluate(p, metrics=["weighted"])["weighted"]
    assert found.value == pytest.approx(wanted, rel=1e-9) and found.low < wanted < found.high
    grouped = calibrant.evaluate(p.logits, p.labels, metrics=["weighted"], group=np.arange(3000) % 50)["weighted"]
    assert grouped.value == found.value and grouped.low < wanted < grouped.high
    change = calibrant.compare(p.logits, 1.5 * p.logits, p.labels, metrics=["weighted"])["weighted"]
    assert change.low < change.difference < change.high and change.method
    streamed = report(state(scores), metrics=["weighted"], resampling=Resampling())["weighted"]
    assert (streamed.value, streamed.low, streamed.high) == pytest.approx((wanted, found.low, found.high), rel=1e-6)


@pytest.mark.parametrize("merged", [True, False])
def test_weights_of_groups_give_the_values_of_item_weights(merged: bool) -> None:
    group = torch.randint(20, (3000,), generator=torch.Generator().manual_seed(0))
    panel, order = Panel(reduce(replace(sample(3000, ties=True), group=group))), torch.arange(3000)
    if merged:
        order, panel = panel.merged_cells
    (count,) = counts(20, 20, 30, 1)
    by_items = panel.reweighted(count[:, group[order]])
    by_groups = UnitPanel(Groups(panel, group[order], 20), count)
    for metric in METRICS.values():
        if isinstance(metric.compute, Mean | Ranked):  # calibration errors are never drawn
            torch.testing.assert_close(metric(by_groups), metric(by_items), rtol=1e-11, atol=1e-14)


def test_counts_equal_plain_draws_for_any_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(7)
    plain = [np.bincount(torch.randint(50, (50,), generator=g).numpy(), minlength=50) for _ in range(9)]
    for chunk in (50, 200, 1 << 22):  # a row at a time, four, all
        monkeypatch.setattr(bootstrap, "_CHUNK", chunk)
        found = torch.cat([c.clone() for c in counts(50, 50, 9, 7)])
        assert np.array_equal(found.numpy(), np.stack(plain))
