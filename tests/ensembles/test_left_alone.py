"""What every ensemble restores, and the inputs that a call accepts."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import calibrant
from calibrant.ensembles.dropout import insert

X = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(3))


class InPlace(nn.Module):
    """A network that normalises its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x.sub_(0.5).div_(0.2)).mean((2, 3)))


@pytest.mark.parametrize("kind", ["pep", "deep", "list", "temporal"])
def test_members_get_the_same_input_from_a_network_that_writes_to_it(kind: str) -> None:
    net, x, y = InPlace().eval(), X.clone(), torch.arange(5) % 3
    with torch.no_grad():
        alone = net(X.clone())
    if kind == "pep":
        members = calibrant.PEP(net, 0.0, members=3).members(x)
        assert calibrant.PEP.fit(net, (x, y), members=2).certificate.nll_at_zero == pytest.approx(
            float(nn.functional.cross_entropy(alone.double(), y))
        )
    elif kind == "deep":
        members = calibrant.DeepEnsemble([net, copy.deepcopy(net)]).members(x)
    elif kind == "temporal":
        members = [calibrant.TemporalSmoothing(net, window=0)(x), calibrant.TemporalSmoothing(net, window=0)(x)]
        alone = alone.double().log_softmax(-1)
    else:
        members = calibrant.predict([net, net], [(x, y)]).logits
    assert all(torch.equal(m, alone) for m in members)
    assert torch.equal(x, X)


def test_fitting_on_a_loader_leaves_the_global_generator_as_found() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 3), nn.BatchNorm1d(3)).eval()
    loader = DataLoader(TensorDataset(X, torch.arange(5) % 3), batch_size=5, shuffle=True)
    rng = torch.get_rng_state()
    calibrant.PEP.fit(net, loader, members=2, search_members=2)
    calibrant.SWA.fit(net, [net.state_dict()], loader)
    assert torch.equal(rng, torch.get_rng_state())


def test_insert_adds_dropout_once_per_place_and_undo_removes_it() -> None:
    act = nn.ReLU()
    inner = nn.Sequential(nn.Linear(4, 4), act)
    model = nn.Sequential(inner, nn.Linear(4, 4), act, inner, nn.Linear(4, 3))
    before = [id(m) for m in model.modules()]
    insertion = insert(model, 0.5)
    assert len(insertion.names) == 2 and sum(isinstance(m, nn.Dropout) for m in model.modules()) == 2
    insertion.undo()
    assert [id(m) for m in model.modules()] == before


def test_weights_are_restored_if_the_consumer_of_logits_fails() -> None:
    net = InPlace()
    before = copy.deepcopy(net.state_dict())
    try:
        for _ in calibrant.PEP(net, 0.1, members=3).over([X.clone()]):
            raise KeyboardInterrupt
    except KeyboardInterrupt:  # the traceback keeps the generator alive
        assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
