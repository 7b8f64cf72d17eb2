"""Replicates from sums over groups equal those from item weights; draws and runs equal plain counts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from calibrant.functional import ranking
from calibrant.functional.inputs import predictions
from calibrant.functional.scores import reduce
from calibrant.metrics import METRICS, bootstrap
from calibrant.metrics.bootstrap import Groups, counts
from calibrant.metrics.panel import Panel, UnitPanel
from calibrant.metrics.proper import Mean
from calibrant.metrics.refinement import Ranked

DRAWN = [m for m in METRICS.values() if isinstance(m.compute, Mean | Ranked)]  # calibration errors are never drawn


def frames(n: int = 6000, groups: int = 20) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    z = (3 * torch.randn(n, 4, generator=g, dtype=torch.float64)).round(decimals=1)  # with ties
    y = torch.multinomial(torch.softmax(z / 2, 1), 1, generator=g)[:, 0]
    return z, y, torch.randint(groups, (n,), generator=g)


@pytest.mark.parametrize("sorted_", [True, False])
@pytest.mark.parametrize("metric", DRAWN, ids=lambda m: m.name)
def test_weights_of_groups_give_the_values_of_item_weights(metric, sorted_: bool) -> None:
    z, y, group = frames()
    panel = Panel(reduce(predictions(z, y, group=group)))
    order = torch.arange(len(y))
    if sorted_:
        order, panel = panel.merged_cells
    (count,) = counts(20, 20, 30, 1)
    by_items = metric(panel.reweighted(count[:, group[order]]))
    by_groups = metric(UnitPanel(Groups(panel, group[order], 20), count))
    torch.testing.assert_close(by_groups, by_items, rtol=1e-11, atol=1e-14)


def test_counts_equal_plain_draws_for_any_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(7)
    plain = [np.bincount(torch.randint(50, (50,), generator=g).numpy(), minlength=50) for _ in range(9)]
    for chunk in (50, 200, 1 << 22):  # a row at a time, four, all
        monkeypatch.setattr(bootstrap, "_CHUNK", chunk)
        found = torch.cat([c.clone() for c in counts(50, 50, 9, 7)])
        assert np.array_equal(found.numpy(), np.stack(plain))


def test_runs_are_sums_over_ties() -> None:
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
