"""PEP's gain against overfitting, checkpoint by checkpoint (PEP Fig. 3)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.diagnostics import overfitting
from calibrant.ensembles import PEP
from calibrant.errors import InputError

RNG = torch.Generator().manual_seed(0)


def items(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 4, generator=RNG), torch.randint(0, 3, (n,), generator=RNG)


def test_each_epoch_is_the_network_with_its_weights() -> None:
    train, validation, test = items(30), items(40), items(50)
    model, other = nn.Linear(4, 3), nn.Linear(4, 3)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    rows = overfitting(model, {7: other.state_dict(), 2: before}, [train], validation, test, members=4)
    assert [row.epoch for row in rows] == [2, 7]
    for row, network in zip(rows, (model, other), strict=True):
        with torch.no_grad():
            nll = [float(nn.functional.cross_entropy(network(x).double(), y)) for x, y in (train, test)]
        assert [row.train_nll, row.test_nll] == pytest.approx(nll, rel=1e-6)
        assert row.overfitting == pytest.approx(nll[1] - nll[0], rel=1e-6)
        pep = PEP.fit(network, validation, members=4)
        pooled = pep(test[0]).double()
        assert row.sigma == pep.sigma
        assert row.pep_nll == pytest.approx(float(nn.functional.cross_entropy(pooled, test[1])), rel=1e-6)
        assert row.effect == pytest.approx(row.test_nll - row.pep_nll)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_without_checkpoints() -> None:
    with pytest.raises(InputError, match="--keep-weights N"):
        overfitting(nn.Linear(4, 3), {}, items(2), items(2), items(2))
