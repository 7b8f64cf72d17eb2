"""What is particular to MC dropout, deep ensembles, SWA and SWAG."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.ensembles import assemble
from calibrant.ensembles.deep import DeepEnsemble
from calibrant.ensembles.dropout import MCDropout, insert
from calibrant.ensembles.ingredients import Ingredients
from calibrant.ensembles.swa import SWA, average, recalibrate
from calibrant.ensembles.swag import SWAG
from calibrant.errors import InputError

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))


def test_rate_override_is_used_and_undone() -> None:
    model = nn.Sequential(nn.Dropout(0.1), nn.Linear(6, 3, bias=False))
    dropped = MCDropout(model, members=200, p=0.9).members(torch.ones(1, 6))
    silent = (dropped == 0).all(-1).double().mean().item()
    assert silent == pytest.approx(0.9**6, abs=0.12)
    assert model[0].p == 0.1


def test_a_model_without_dropout_is_refused_with_the_remedy() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    with pytest.raises(InputError, match="insert"):
        MCDropout(model)
    before = model(X)
    assert insert(model, 0.5).names == ("1",) and torch.equal(model(X), before)  # in eval mode dropout is silent
    assert MCDropout(model, members=2)(X).shape == (40, 3)


def test_swa_is_the_mean_of_weights_with_batchnorm_measured_again() -> None:
    nets = [nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)) for _ in range(3)]
    states = [n.state_dict() for n in nets]
    swa = SWA.fit(nets[0], states, train=[X[:20], X[20:]])
    mean = torch.stack([n[0].weight for n in nets]).mean(0)
    assert torch.allclose(swa.model[0].weight, mean, atol=1e-7)
    hidden = swa.model[0](X)
    expected = torch.stack([hidden[:20].mean(0), hidden[20:].mean(0)]).mean(0)
    assert torch.allclose(swa.model[1].running_mean, expected, atol=1e-6)
    assert swa.model[1].momentum == 0.1


def test_swag_draws_have_the_moments_of_the_checkpoints() -> None:
    g = torch.Generator().manual_seed(5)
    nets = []
    for _ in range(6):
        net = nn.Linear(2, 2)
        with torch.no_grad():
            net.weight.copy_(torch.randn(2, 2, generator=g))
        nets.append(net)
    swag = SWAG.fit(nets[0], [n.state_dict() for n in nets], members=4000)
    stacked = torch.stack([n.weight.detach() for n in nets])
    draws = []
    for j in range(swag.size):
        with swag.member(j):
            draws.append(swag.model.weight.detach().clone())
    drawn = torch.stack(draws)
    assert torch.allclose(drawn.mean(0), stacked.mean(0), atol=0.08)
    # ½ Σ_diag + D Dᵀ / (2(R − 1)) on the diagonal, with R = 6 and Σ_diag = D Dᵀ / 6
    expected = stacked.var(0, unbiased=False) / 2 + stacked.var(0, unbiased=True) / 2
    assert torch.allclose(drawn.var(0), expected, rtol=0.12)


NET = nn.Linear(2, 2)
REFUSED = {
    "different parameters": lambda: average([nn.Linear(2, 2).state_dict(), nn.Linear(2, 2, bias=False).state_dict()]),
    "no checkpoints": lambda: average([]),
    "there were none": lambda: recalibrate(nn.Sequential(nn.BatchNorm1d(3)), []),
    "at least 2": lambda: SWAG.fit(nn.Linear(2, 2), [nn.Linear(2, 2).state_dict()]),
    "pass train=": lambda: SWA.fit(norm := nn.BatchNorm1d(3), [norm.state_dict()]),
    "at least one": lambda: DeepEnsemble([]),
    "3 members were asked for, and this model has 2": lambda: assemble("deep", Ingredients([NET, NET], members=3)),
    "needs several networks": lambda: assemble("deep", Ingredients([NET])),
    "pep takes one network": lambda: assemble("pep", Ingredients([NET, NET])),
    "swa needs the weights of several epochs": lambda: assemble("swa", Ingredients([NET])),
}


@pytest.mark.parametrize("says", REFUSED)
def test_too_little_to_average_is_refused(says: str) -> None:
    with pytest.raises(InputError, match=says):
        REFUSED[says]()
