"""Survivors of an attack against `assess`, which counts them its own way; and paired differences against scipy."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import ttest_rel
from torch import nn

from calibrant import MCDropout
from calibrant.attacks import FGSM, assess
from calibrant.diagnostics import under_attack
from calibrant.diagnostics.intervals import independent_difference, paired_difference
from calibrant.errors import InputError
from calibrant.functional.binomial import wilson
from calibrant.types import Estimate

RNG = torch.Generator().manual_seed(0)


def trained() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    x = torch.rand(120, 6, generator=RNG)
    y = (x[:, 0] + 0.3 * x[:, 1] > 0.65).long()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 2))
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval(), x, y


def test_the_shares_are_those_of_assess() -> None:
    model, x, y = trained()
    found = under_attack(model, [(x[:50], y[:50]), (x[50:], y[50:])], FGSM(epsilon=0.1))
    strength = assess(model, FGSM(epsilon=0.1), x, y)
    assert found.accuracy().value == pytest.approx(strength.accuracy)
    assert found.accuracy_under_attack().value == pytest.approx(strength.accuracy_under_attack)
    rate = found.success_rate()
    assert rate.value == pytest.approx(strength.success_rate) and rate.low < rate.value < rate.high
    assert not (found.survived & ~found.right).any()


def test_an_ensemble_is_attacked_through_its_pool() -> None:
    model, x, y = trained()
    found = under_attack(MCDropout(model, 5), (x, y), FGSM(epsilon=0.1))
    assert found.accuracy().value > found.accuracy_under_attack().value > 0


def test_nothing_to_attack() -> None:
    model, x, _ = trained()
    found = under_attack(model, (x[:5], 1 - model(x[:5]).argmax(-1)), FGSM(epsilon=0.1))
    assert found.success_rate().value is None
    with pytest.raises(InputError, match="no batches"):
        under_attack(model, [], FGSM())


def test_independent_difference_is_newcombes_interval() -> None:
    """His first example, 56 of 70 against 48 of 80: from Wilson's intervals, 0.2 [0.0524, 0.3339] (1998, method 10)."""
    a, b = (Estimate(k / n, *map(float, wilson(k, n))) for k, n in ((48, 80), (56, 70)))
    found = independent_difference(a, b)
    e = found.estimate
    assert (e.value, e.low, e.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5) and found.beyond
    assert independent_difference(a, b, comparisons=5).estimate.low < e.low
    assert independent_difference(a, Estimate(0.8)).estimate.low is None
    assert independent_difference(a, Estimate(None, reason="no items")).estimate.reason == "no items"


def test_paired_difference_is_the_t_test() -> None:
    a, b = torch.randn(30, generator=RNG), torch.randn(30, generator=RNG) + 0.8
    found = paired_difference(a, b)
    theirs = ttest_rel(b.double(), a.double()).confidence_interval()
    assert (found.estimate.low, found.estimate.high) == pytest.approx((theirs.low, theirs.high))
    assert found.beyond and not paired_difference(a, a + 1e-3 * b - 1e-3 * b.mean()).beyond
    wide = paired_difference(a, b, comparisons=5).estimate
    assert wide.low < found.estimate.low and "Bonferroni for 5" in wide.method
    assert paired_difference(a[:1], b[:1]).estimate.low is None and not paired_difference(a[:1], b[:1]).beyond
    with pytest.raises(InputError, match="not the same items"):
        paired_difference(a, b[:3])
