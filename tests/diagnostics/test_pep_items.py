"""PEP item by item (Fig. 2c, Eq. 15) against naive passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant import PEP
from calibrant.diagnostics import pep_effect, pep_items
from calibrant.ensembles.perturbation import perturbed

RNG = torch.Generator().manual_seed(0)
X = torch.randn(60, 4, generator=RNG, dtype=torch.float64)
Y = torch.randint(0, 3, (60,), generator=RNG)


def fitted() -> nn.Module:
    """An overfitted network, from which PEP gains."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(X[:30]), Y[:30]).backward()
        optimiser.step()
    return model


def test_every_item_against_naive_passes() -> None:
    model = fitted()
    pep = PEP(model, 0.3, members=6, where="all")
    found = pep_items(pep, [(X[30:45], Y[30:45]), (X[45:], Y[45:])])
    p = []
    for j in range(6):
        with torch.no_grad(), perturbed(pep.parameters, 0.3, seed=0, member=j, antithetic=True):
            p.append(torch.softmax(model(X[30:]), -1))
    with torch.no_grad():
        base = torch.softmax(model(X[30:]), -1)
    mean, place = torch.stack(p).mean(0), torch.arange(30)
    torch.testing.assert_close(found.members.exp(), torch.stack(p)[:, place, Y[30:]])
    torch.testing.assert_close(found.gain, (mean[place, Y[30:]] / base[place, Y[30:]]).log())
    was, now = base.argmax(-1) == Y[30:], mean.argmax(-1) == Y[30:]
    assert set(found.corrected.tolist()) == set((~was & now).nonzero()[:, 0].tolist())
    assert set(found.spoiled.tolist()) == set((was & ~now).nonzero()[:, 0].tolist())
    change = (found.pooled.exp() - found.baseline.exp())[found.corrected]
    assert torch.equal(change, change.sort(descending=True).values)


def test_the_mean_gain_is_the_measured_effect_and_low_items_carry_it() -> None:
    model = fitted()
    found = pep_items(PEP(model, 0.2, members=10, where="all"), (X[30:], Y[30:]))
    measured = pep_effect(model, (X[30:], Y[30:]), where="all", probes=1, sigmas=(0.2,), members=10).measured[0][1]
    effect = found.effect()
    assert effect.value == pytest.approx(measured, rel=1e-6) and effect.low < measured < effect.high
    lowest = found.baseline.argsort()[:6]
    assert found.share_of_low(0.2) == pytest.approx(float(found.gain[lowest].sum() / found.gain.sum()))
    assert found.share_of_low(0.2) > 0.3 and found.share_of_low(1) == pytest.approx(1)
    none = pep_items(PEP(model, 0.0, members=3, where="all"), (X, Y))
    assert none.share_of_low() is None and none.gain.tolist() == [0.0] * 60
