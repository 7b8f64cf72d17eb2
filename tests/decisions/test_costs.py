"""Costs: the action of least expected cost by a naive loop, and its comparison with today's rules."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import calibrant
from calibrant.decisions.costs import LeastCost
from calibrant.errors import InputError

COSTS = torch.tensor([[0.0, 1, 5, 0.3], [2, 0, 1, 0.3], [9, 1, 0, 0.3]])
ACTIONS = ("send", "check", "drop", "abstain")


def sample(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, 3, generator=g)
    return z, torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]


def test_the_action_of_least_expected_cost(tmp_path: Path) -> None:
    z, y = sample(5000, 0)
    rule = calibrant.decide(z, y, costs=COSTS, actions=ACTIONS)
    d = calibrant.load(rule.save(tmp_path / "rule"))(z)
    for i in range(200):
        p = torch.softmax(z[i].double(), 0).tolist()
        expected = [sum(p[k] * float(COSTS[k, a]) for k in range(3)) for a in range(4)]
        assert d.action is not None and int(d.action[i]) == expected.index(min(expected))
    assert d.action is not None and torch.equal(d.accepted, d.action != 3) and d.sets is None
    c = rule.record.certificate
    cost = COSTS[y, d.action].double()
    error = float(cost.std() / 5000**0.5)
    assert c["cost"]["value"] == pytest.approx(float(cost.mean()))
    assert c["cost"]["high"] - c["cost"]["low"] == pytest.approx(2 * 1.96 * error, rel=1e-3)
    assert c["cost"]["value"] < c["threshold"]["value"] < c["argmax"]["value"] and c["saved"]["low"] > 0
    assert "against" in rule.sentence and "handed to a person" in rule.sentence


def test_the_best_threshold_in_hindsight_by_trying_all() -> None:
    z, y = sample(60, 1)
    z = z.round()  # ties
    rule = calibrant.decide(z, y, costs=COSTS, actions=ACTIONS)
    conf, guess = torch.softmax(z.double(), 1).max(1)
    act = COSTS[y, COSTS.argmin(1)[guess]]
    tried = [torch.where(conf >= t, act, COSTS[y, 3]).double().mean() for t in [*conf.tolist(), 2.0]]
    assert rule.record.certificate["threshold"]["value"] == pytest.approx(float(min(tried)))


def test_without_names_and_bad_input() -> None:
    z, y = sample(300, 2)
    rule = calibrant.decide(z, y, costs=1 - torch.eye(3))
    assert isinstance(rule, LeastCost) and rule.actions == ("0", "1", "2") and bool(rule(z).accepted.all())
    assert torch.equal(rule(z).action, z.argmax(1))
    top = calibrant.predictions(labels=y, predicted=y, confidence=torch.rand(300))
    for given, table, message in (
        ((z, y), torch.ones(4, 3), "one row for each of the 3 classes"),
        ((z, y), torch.ones(3, 1), "two actions or more"),
        ((z, y), torch.full((3, 2), torch.nan), "finite"),
        ((top, None), COSTS, "top-1"),
    ):
        with pytest.raises(InputError, match=message):
            calibrant.decide(*given, costs=table)
    with pytest.raises(InputError, match="4 different names"):
        calibrant.decide(z, y, costs=COSTS, actions=("a", "b", "c", "c"))
    with pytest.raises(InputError, match="by does not belong to costs"):
        calibrant.decide(z, y, costs=COSTS, by="class")
