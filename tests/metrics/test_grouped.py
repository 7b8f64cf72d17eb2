"""Replicates from sums of groups are those of item weights, and draws and runs are those of plain counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import calibrant
from calibrant.functional import ranking
from calibrant.functional.inputs import predictions
from calibrant.functional.scores import reduce
from calibrant.metrics import METRICS, bootstrap
from calibrant.metrics.bootstrap import coarse, counts, draw, weights
from calibrant.metrics.table import Panel
from calibrant.metrics.units import GroupPanel, Groups, pays

METHODS = [m for m in METRICS.values() if m.name != "ece_classwise"]  # its sums are of cells, not of items


def frames(n: int = 6000, groups: int = 20) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    z = (3 * torch.randn(n, 4, generator=g, dtype=torch.float64)).round(decimals=1)  # with ties
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    return z, y, torch.randint(groups, (n,), generator=g)


@pytest.mark.parametrize("sorted_", [True, False])
@pytest.mark.parametrize("metric", METHODS, ids=lambda m: m.name)
def test_every_metric_under_weights_of_groups_is_that_under_weights_of_items(metric, sorted_: bool) -> None:
    z, y, group = frames()
    panel = Panel(reduce(predictions(z, y, group=group)))
    order = torch.arange(len(y))
    if sorted_:
        order, panel = coarse(panel)
    count = draw(20, 30, torch.Generator().manual_seed(1))
    by_items = metric(panel.reweighted(count[:, group[order]]))
    by_groups = metric(GroupPanel(Groups(panel, group[order], 20), count))
    torch.testing.assert_close(by_groups, by_items, rtol=1e-11, atol=1e-14)


def test_the_report_is_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y, group = frames()
    short = calibrant.evaluate(z, y, group=group, replicates=200)
    paired = calibrant.compare(z, z / 2, y, group=group, replicates=200)
    monkeypatch.setattr(bootstrap, "pays", lambda panel, count: False)
    long = calibrant.evaluate(z, y, group=group, replicates=200)
    beside = calibrant.compare(z, z / 2, y, group=group, replicates=200)
    for name, e in long.items():
        assert (short[name].low, short[name].high) == pytest.approx((e.low, e.high), rel=1e-9), name
        a, b = paired[name], beside[name]
        assert (a.low, a.high, a.p) == pytest.approx((b.low, b.high, b.p), rel=1e-9), name


def test_many_small_groups_are_weighed_by_item() -> None:
    z, y, group = frames()
    panel = coarse(Panel(reduce(predictions(z, y, group=group))))[1]
    assert pays(panel, 20) and not pays(panel, 3000)


def test_counts_are_those_of_plain_draws_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(7)
    plain = [np.bincount(torch.randint(50, (50,), generator=g).numpy(), minlength=50) for _ in range(9)]
    for chunk in (50, 200, 1 << 22):  # a row at a time, four, all
        monkeypatch.setattr(bootstrap, "_CHUNK", chunk)
        found = torch.cat([c.clone() for c in counts(50, 50, 9, 7)])
        assert np.array_equal(found.numpy(), np.stack(plain))
        assert torch.equal(torch.cat([w.clone() for w in weights(None, 50, 9, 7)]), found)


@pytest.mark.parametrize("stretch", [1, 7, 1 << 18])
def test_runs_are_summed_stretch_by_stretch(stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "STRETCH", stretch)
    g = torch.Generator().manual_seed(0)
    score = torch.randint(9, (60,), generator=g).double()
    hit, w = torch.rand(60, generator=g) < 0.5, torch.randint(4, (3, 60), generator=g).double()
    found = ranking.run_weights(ranking.rank(score), hit, w)
    levels = sorted(set(score.tolist()))
    for row in range(3):
        for r, level in enumerate(levels):
            here = [i for i in range(60) if score[i] == level]
            assert found[0][row, r] == sum(float(w[row, i]) for i in here if hit[i])
            assert found[1][row, r] == sum(float(w[row, i]) for i in here if not hit[i])
