"""Items in groups: promises hold over new groups, where counting items as independent would break them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import calibrant
from calibrant.decisions import AdaptiveSets, WeightedSets
from calibrant.decisions.grouped import Grouped
from calibrant.decisions.quantile import quantile
from calibrant.decisions.threshold import Ordered
from calibrant.errors import InputError
from tests.cli.commands import call

SETS, POOL = 400, 4000
NOISE = 3 * np.sqrt(0.05 * 0.95 / SETS)


class World:
    """Groups of 1 to 30 items. Whole groups are easy or hard; the pool of all groups is the population."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        size = rng.integers(1, 31, POOL)
        self.start = np.concatenate([[0], np.cumsum(size)])
        self.group = np.repeat(np.arange(POOL), size)
        hard = np.repeat(rng.random(POOL) < 0.2, size)
        self.confidence = rng.beta(np.where(hard, 1, 12), 1)
        self.wrong = (rng.random(len(hard)) > np.where(hard, 0.5, 0.99)).astype(float)
        self.score = rng.random(len(hard)) ** np.where(hard, 0.3, 1.5)
        self.rng = rng

    def draw(self, groups: int) -> tuple[np.ndarray, np.ndarray]:
        """(items, their groups, numbered anew) of groups drawn from the pool."""
        found = self.rng.integers(0, POOL, groups)
        items = [np.arange(self.start[g], self.start[g + 1]) for g in found]
        return np.concatenate(items), np.repeat(np.arange(groups), [len(i) for i in items])

    def risk(self, t: float) -> float:
        """The mean over groups of the share of errors among what is accepted."""
        accepted = self.confidence >= t
        kept = np.bincount(self.group, accepted, POOL)
        errors = np.bincount(self.group, accepted * self.wrong, POOL)
        return float((errors[kept > 0] / kept[kept > 0]).mean())

    def coverage(self, q: float) -> float:
        shares = np.bincount(self.group, self.score <= q) / np.bincount(self.group)
        return float(shares.mean())


def test_thresholds_keep_their_promise_over_new_groups() -> None:
    world, risks = World(0), {}
    broken, alone, accepted = 0, 0, 0
    for _ in range(SETS):
        items, group = world.draw(300)
        for grouped in (True, False):
            c, w = world.confidence[items], world.wrong[items]
            found = (Grouped(c, w, group) if grouped else Ordered.of(c, w)).choose(0.1, 0.05)
            if found.count:
                t = round(found.threshold, 3)
                risks[t] = risks.get(t) or world.risk(t)
                # of items, the promise is about items: dependence alone breaks it
                bad = (risks[t] if grouped else world.wrong[world.confidence >= found.threshold].mean()) > 0.1
                broken, alone = broken + (grouped and bad), alone + (not grouped and bad)
                accepted += grouped
    assert broken / SETS <= 0.05 + NOISE and accepted / SETS > 0.3
    assert alone / SETS > 0.1  # what the rule is for


def test_sets_cover_new_groups_on_average_and_with_a_guarantee() -> None:
    world, covered, worse, alone = World(1), [], 0, 0
    for _ in range(SETS):
        items, group = world.draw(60)
        s, u = world.score[items], np.ones(len(items))
        covered.append(world.coverage(quantile(s, u, 0.9, None, group)[0]))
        worse += world.coverage(quantile(s, u, 0.9, 0.95, group)[0]) < 0.9
        alone += world.coverage(quantile(s, u, 0.9, 0.95)[0]) < 0.9
    assert np.mean(covered) == pytest.approx(0.905, abs=0.01) and np.mean(covered) > 0.9
    assert worse / SETS <= 0.05 + NOISE < 0.1 < alone / SETS


def test_a_bound_for_a_given_threshold_and_a_share() -> None:
    world, broken = World(2), {"given": 0, "share": 0}
    at = {t: world.risk(t) for t in (0.9,)}
    for _ in range(500):
        items, group = world.draw(100)
        g = Grouped(world.confidence[items], world.wrong[items], group)
        broken["given"] += g.bound(g.at(0.9), 0.05) < at[0.9]
        found = g.surest(0.5)
        t = round(found.threshold, 3)
        at[t] = at.get(t) or world.risk(t)
        broken["share"] += g.bound(found, 0.05) < at[t]
    assert max(broken.values()) / 500 <= 0.05 + 2 * NOISE


def test_groups_of_one_item_are_items() -> None:
    """Sets are the same as for items; only the candidates of a threshold differ."""
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(800, 5, generator=g)
    y = torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]
    single = calibrant.predictions(z, y, group=np.arange(800))
    for settings in ({"method": "aps"}, {"by": "class"}, {"randomised": True, "method": "topk"}):
        a, b = (calibrant.decide(p, set_coverage=0.9, **settings) for p in (single, calibrant.predictions(z, y)))
        assert torch.equal(a.tensors()["quantile"], b.tensors()["quantile"])
        assert torch.equal(a.tensors()["tie"], b.tensors()["tie"])
        assert a.record.certificate["beta"] is None and "for an item of a new group" in a.sentence


def images(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [N, K, H, W] and labels [N, H, W], 255 for unlabelled pixels. Some images are blurred."""
    g = torch.Generator().manual_seed(seed)
    z = 6 * torch.randn(n, 4, 6, 5, generator=g)
    flat = torch.softmax(z.movedim(1, -1).reshape(-1, 4), 1)
    y = torch.multinomial(flat, 1, generator=g).reshape(n, 6, 5)
    y[torch.rand(n, generator=g) < 0.1] = 0
    y[:, 0] = 255
    return z, y


def test_rules_for_pixels(tmp_path: Path) -> None:
    (z, y), axes = images(200, 0), {"class_axis": 1, "ignore_index": 255}
    rule = calibrant.decide(z, y, accuracy=0.75, **axes)
    assert rule.record.n == 200 * 25 and "in a group, on average over groups" in rule.sentence
    d = rule(z, class_axis=1)
    p, guess = torch.softmax(z.double(), 1).max(1)
    assert torch.equal(d.accepted, p >= rule.tensors()["threshold"]) and torch.equal(d.predicted, guess)
    kept = d.accepted & (y != 255)
    means = [(guess == y)[i][kept[i]].double().mean() for i in range(200) if kept[i].any()]
    assert rule.record.certificate["seen"] == pytest.approx(1 - float(torch.stack(means).mean()))
    sets = calibrant.decide(z, y, set_coverage=0.8, **axes)
    found = calibrant.load(sets.save(tmp_path / "rule"))(z, class_axis=1).sets
    assert found is not None and found.shape == z.shape
    assert torch.equal(found, 1 - torch.softmax(z.double(), 1) <= sets.tensors()["quantile"])
    for module in (calibrant.attach(torch.nn.Identity(), sets, class_axis=axis) for axis in (1, None)):
        assert torch.equal(module(z)[2], found) and module(z)[0].shape == y.shape
    last = torch.nn.Identity()
    last.class_axis = -1  # a network may state its own
    assert torch.equal(calibrant.attach(last, sets)(z.movedim(1, -1))[2], found.movedim(1, -1))
    with pytest.raises(InputError, match="200 groups are too few .* 2995 are needed.*--by group"):
        calibrant.decide(z, y, accuracy=0.999, **axes)
    with pytest.raises(InputError, match="200 groups are too few to promise 99.9%: 999 are needed.*--by group"):
        calibrant.decide(z, y, set_coverage=0.999, **axes)
    with pytest.raises(InputError, match="class_axis=1"):
        rule(z)


def test_pixels_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed, split in (("calibration", 0, "calibration"), ("test", 1, "test")):
        z, y = images(200, seed)
        np.savez(tmp_path / f"{name}.npz", logits=z.numpy(), labels=y.numpy(), split=split)
    axes, rule = ("--class-axis", 1, "--ignore-index", 255), tmp_path / "rule"
    for goal in (("--accuracy", 0.75), ("--set-coverage", 0.8)):
        code, out, _ = call(capsys, "decide", tmp_path / "calibration.npz", *goal, *axes, "-o", rule)
        assert code == 0 and " group" in out
        code, out, _ = call(capsys, "audit", tmp_path / "test.npz", "--rule", rule, *axes, "--no-intervals")
        assert code == 0 and "in line with the promise" in out
        code, out, _ = call(capsys, "apply", rule, tmp_path / "test.npz", *axes, "-o", tmp_path / "o.npz", "--json")
        assert code == 0 and json.loads(out)["n"] == 200 * 25
        assert np.load(tmp_path / "o.npz")["accepted"].shape == (5000,)


def test_judging_over_groups() -> None:
    """The mean of the groups' shares, by hand, whatever their sizes."""
    z = torch.tensor([[9.0, 0.0]] * 12)
    y = torch.tensor([0, 1] + [0] * 10)
    p = calibrant.predictions(z, y, group=[0, 0] + [1] * 10, split="test")
    g = torch.Generator().manual_seed(0)
    many = 3 * torch.randn(500, 2, generator=g)
    rule = calibrant.decide(many, many.argmax(1), accuracy=0.9)
    found = calibrant.decisions.judge(rule, p)
    assert found.estimates["accuracy_accepted"].value == pytest.approx((0.5 + 1.0) / 2)


def test_a_share_over_groups_is_reported_as_approximate() -> None:
    z, y = images(200, 0)
    rule = calibrant.decide(z, y, accept=0.5, class_axis=1, ignore_index=255)
    assert "with about 95% confidence, not guaranteed" in rule.sentence and "(guaranteed" not in rule.sentence
    given = calibrant.decide(z, y, threshold=0.9, class_axis=1, ignore_index=255)
    assert "(guaranteed with 95% confidence" in given.sentence


def test_sets_under_shift_refuse_groups() -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(100, 3, generator=g)
    p = calibrant.predictions(z, z.argmax(1), group=np.arange(100) // 2)
    for make in (lambda: WeightedSets(p, weights=torch.ones(100)), lambda: AdaptiveSets(p)):
        with pytest.raises(InputError, match="calibration items come in groups"):
            make()
