"""Sets for items unlike those of the calibration: known weights, and streams that drift."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import calibrant
from calibrant.decisions import AdaptiveSets, WeightedSets
from calibrant.errors import InputError, SplitError


def world(n: int, seed: int, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and labels drawn from their softmax at this temperature."""
    g = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(n, 5, generator=g, dtype=torch.float64)
    return z, torch.multinomial(torch.softmax(z / temperature, 1), 1, generator=g)[:, 0]


@pytest.mark.parametrize("method", ["lac", "aps"])
def test_equal_weights_are_plain_sets(method: str) -> None:
    z, y = world(499, 0)
    new, _ = world(300, 1)
    plain = calibrant.decide(z, y, set_coverage=0.9, method=method)(new)
    weighted = WeightedSets(z, y, weights=torch.full((499,), 7.0), coverage=0.9, method=method)
    found = weighted(new, weights=torch.full((300,), 7.0))
    assert plain.sets is not None and found.sets is not None and torch.equal(plain.sets, found.sets)


def test_weighted_quantile_equals_the_papers() -> None:
    """Tibshirani 2019, Eq. 5 to 7, item by item in plain Python."""
    z, y = world(60, 2)
    new, _ = world(40, 3)
    w, v = torch.rand(60, dtype=torch.float64) + 0.1, torch.rand(40, dtype=torch.float64) * 5 + 0.1
    found = WeightedSets(z, y, weights=w, coverage=0.8)(new, weights=v).sets
    assert found is not None
    scores = (1 - torch.softmax(z, 1).gather(1, y[:, None])[:, 0]).tolist()
    for i, row in enumerate(torch.softmax(new, 1).tolist()):
        total, mass, q = float(w.sum() + v[i]), 0.0, float("inf")
        for s, weight in sorted(zip(scores, w.tolist(), strict=True)):
            mass += weight / total
            if mass >= 0.8:
                q = s
                break
        assert found[i].tolist() == [1 - p <= q for p in row]


def test_weights_keep_coverage_under_a_known_shift() -> None:
    """Hard items (small margin) are five times as frequent later: plain sets lose coverage, weighted ones keep it."""

    def weight(z: torch.Tensor) -> torch.Tensor:
        top = z.topk(2, 1).values
        return torch.where(top[:, 0] - top[:, 1] < 2, 5.0, 0.2).double()

    plain, weighted = [], []
    for seed in range(20):
        z, y = world(2000, seed)
        many, truth = world(8000, 1000 + seed)
        g = torch.Generator().manual_seed(seed)
        keep = torch.rand(8000, generator=g) < weight(many) / 5
        many, truth = many[keep], truth[keep]
        for out, d in (
            (plain, calibrant.decide(z, y, set_coverage=0.9)(many)),
            (weighted, WeightedSets(z, y, weights=weight(z), coverage=0.9)(many, weights=weight(many))),
        ):
            assert d.sets is not None
            out.append(float(d.sets.gather(1, truth[:, None]).double().mean()))
    assert sum(plain) / 20 < 0.88
    assert sum(weighted) / 20 == pytest.approx(0.9, abs=0.008)


@pytest.mark.parametrize("step", [0.01, 0.1])
def test_no_stream_breaks_the_bound_of_adaptive_sets(step: float) -> None:
    """The opponent gives a label outside the set whenever it can, then only easy ones, then drifting ones."""
    sets = AdaptiveSets(*world(500, 0), coverage=0.9, step=step)
    z, y = world(1200, 5, temperature=6.0)
    missed = 0
    for t in range(1200):
        d = sets(z[t : t + 1])
        assert d.sets is not None
        outside = (~d.sets[0]).nonzero()
        label = outside[0] if t < 400 and len(outside) else d.predicted if t < 800 else y[t : t + 1]
        missed += int(not d.sets[0, label])
        sets.update(d, label)
        assert abs(missed / (t + 1) - 0.1) <= (0.9 + step) / (step * (t + 1)) + 1e-9


def test_adaptive_sets_follow_a_drift_that_fixed_ones_do_not() -> None:
    cal, (z, y) = world(2000, 0), world(3000, 1, temperature=4.0)
    fixed = calibrant.decide(*cal, set_coverage=0.9)(z)
    sets, hits = AdaptiveSets(*cal, coverage=0.9), []
    for t in range(3000):
        d = sets(z[t : t + 1])
        assert d.sets is not None
        hits.append(bool(d.sets[0, y[t]]))
        sets.update(d, y[t : t + 1])
    assert fixed.sets is not None and float(fixed.sets.gather(1, y[:, None]).double().mean()) < 0.8
    assert sum(hits[1000:]) / 2000 == pytest.approx(0.9, abs=0.01)


def test_refusals() -> None:
    z, y = world(100, 0)
    with pytest.raises(InputError, match="one for each of the 100 items"):
        WeightedSets(z, y, weights=torch.ones(99))
    with pytest.raises(InputError, match="above 0"):
        WeightedSets(z, y, weights=torch.zeros(100))
    with pytest.raises(InputError, match="coverage=2"):
        AdaptiveSets(z, y, coverage=2)
    with pytest.raises(SplitError, match="the map was fitted on these very items"):
        AdaptiveSets(z, y, map=calibrant.fit("temperature", z, y))
    sets = AdaptiveSets(z, y)
    with pytest.raises(InputError, match="one for each item"):
        sets.update(sets(z[:3]), y[:2])
    with pytest.warns(calibrant.CalibrantWarning, match="leave 1.0 of 100 items"):
        WeightedSets(z, y, weights=torch.tensor([1e6] + [1.0] * 99))


def test_an_easy_stream_ends_in_small_sets() -> None:
    """The level falls to 0 and below, by steps whose rounding may leave it just above."""
    z, y = world(500, 0)
    sets = AdaptiveSets(z, y, coverage=0.9, step=0.1, method="aps")
    for _ in range(400):
        d = sets(z[:1])
        sets.update(d, d.predicted)
    assert sets.level < 0.11


def test_nan_is_never_accepted() -> None:
    z, y = world(600, 0)
    bad = z[:2].clone()
    bad[0, 1] = torch.nan
    for rule in (
        calibrant.decide(z[300:], y[300:], accuracy=0.6, map=calibrant.fit("histogram_mass", z[:300], y[:300])),
        calibrant.decide(z, y, costs=1 - torch.eye(5)),
        calibrant.decide(z, y, set_coverage=0.6),
    ):
        d, attached = rule(bad), calibrant.attach(torch.nn.Identity(), rule)(bad)
        assert not d.accepted[0] and not attached[1][0]
        assert d.sets is None or bool(d.sets[0].all())
        assert d.action is None or int(d.action[0]) == int(attached[2][0]) == -1 < int(d.action[1])
    abstaining = calibrant.decide(z, y, costs=torch.ones(5, 2), actions=["send", "abstain"])
    assert (
        abstaining(bad).action.tolist() == [1, 0] == calibrant.attach(torch.nn.Identity(), abstaining)(bad)[2].tolist()
    )


@pytest.mark.parametrize(
    "goal",
    [
        {"accept": 0.5, "by": "class"},
        {"costs": 1 - torch.eye(5)},
        {"set_coverage": 0.6, "method": "aps"},
    ],
    ids=["threshold", "costs", "sets"],
)
def test_an_empty_batch_has_no_decisions(goal: dict[str, Any]) -> None:
    z, y = world(600, 0)
    rule = calibrant.decide(z[300:], y[300:], map=calibrant.fit("temperature", z[:300], y[:300]), **goal)
    for empty in (z[:0], z[None, :0]):  # one prediction per item, and members
        found = rule(empty)
        assert len(found.accepted) == len(found.predicted) == 0 and repr(found) == "no decisions"


def test_a_draw_does_not_depend_on_the_batch_behind_a_map() -> None:
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(900, 20, generator=g)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]
    fitted = calibrant.fit("structured_matrix", z[:300], y[:300])
    rule = calibrant.decide(z[300:600], y[300:600], set_coverage=0.9, method="aps", randomised=True, map=fitted)
    whole, single = rule(z[600:]).sets, torch.cat([rule(row[None]).sets for row in z[600:]])  # type: ignore[misc]
    assert whole is not None and torch.equal(whole, single)
