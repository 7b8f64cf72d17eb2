"""Networks that a replay must not be made of: their members are those of the naive loop all the same."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import calibrant
from calibrant.ensembles.dropout import MCDropout, insert

X = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(3))


class Net(nn.Module):
    def __init__(self, how: Callable[["Net", torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.how = how
        self.features, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(self, x)

    def end(self, h: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(h).mean((2, 3)))


def counts_in_place(n: Net, x: torch.Tensor) -> torch.Tensor:
    n.seen += 1
    return n.end(n.features(x) * n.seen)


def counts_in_a_new_buffer(n: Net, x: torch.Tensor) -> torch.Tensor:
    n.seen = n.seen + 1
    return n.end(n.features(x) * n.seen)


def writes_to_a_view_of_a_buffer(n: Net, x: torch.Tensor) -> torch.Tensor:
    n.seen[None].add_(1)
    return n.end(n.features(x) * n.seen)


def keeps_its_statistics_moving(n: Net, x: torch.Tensor) -> torch.Tensor:
    h = n.features(x)
    return n.end(nn.functional.batch_norm(h, n.norm.running_mean, n.norm.running_var, training=True))


def normalises_its_input_in_place(n: Net, x: torch.Tensor) -> torch.Tensor:
    return n.end(n.features(x.sub_(0.5).div_(0.2)))


def writes_to_its_input_at_the_end(n: Net, x: torch.Tensor) -> torch.Tensor:
    out = n.end(n.features(x))
    return out + x.add_(1).mean()


def leaves_for_numpy(n: Net, x: torch.Tensor) -> torch.Tensor:
    h = n.features(x)
    aside = h.tanh()
    return n.end(h) + torch.from_numpy(aside.numpy().mean((2, 3)))[:, :3]


def returns_a_packed_sequence(n: Net, x: torch.Tensor) -> torch.Tensor:
    packed = n.pack(x)
    return n.head(n.drop(packed.data[:5, :4]))


class Pack(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return pack_padded_sequence(x.mean(1), torch.tensor([5, 4, 3, 2, 2]), batch_first=True)


class Encoder(nn.Module):
    """Leaves its features in a list that the decoder takes them out of."""

    def __init__(self, kept: list[torch.Tensor]) -> None:
        super().__init__()
        self.kept, self.convolution = kept, nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.convolution(x)
        self.kept.append(h.tanh())
        return h


def skips_past_the_modules(n: Net, x: torch.Tensor) -> torch.Tensor:
    return n.head((n.drop(n.encoder(x)) + n.encoder.kept.pop()).mean((2, 3)))


def looks_at_the_first_item(n: Net, x: torch.Tensor) -> torch.Tensor:
    h = n.drop(n.features(x))
    return n.head((h - h[:1]).mean((2, 3)))


def looks_at_the_last_item(n: Net, x: torch.Tensor) -> torch.Tensor:
    h = n.drop(n.features(x))
    return n.head((h - h[-1:]).mean((2, 3)))


def decides_for_the_whole_batch(n: Net, x: torch.Tensor) -> torch.Tensor:
    h = n.features(x)
    d = n.drop(h)
    return n.head((d + h if d.mean() > h.mean() else d - h).mean((2, 3)))


NETWORKS = [
    *(counts_in_place, counts_in_a_new_buffer, writes_to_a_view_of_a_buffer, keeps_its_statistics_moving),
    *(normalises_its_input_in_place, writes_to_its_input_at_the_end, leaves_for_numpy, returns_a_packed_sequence),
    *(skips_past_the_modules, looks_at_the_first_item, looks_at_the_last_item, decides_for_the_whole_batch),
]


def network(how: Callable[[Net, torch.Tensor], torch.Tensor]) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net(how)
        net.pack, net.encoder = Pack(), Encoder(net.kept)
    return net


@pytest.fixture(autouse=True)
def _always_replay(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Not only where it is the quicker way."""
    from calibrant.ensembles import passes

    monkeypatch.setattr(passes.Passes, "_cheaply", lambda self, n, _: map(self.replayed, range(1, n)))
    yield


@pytest.mark.parametrize("together", [None, 2, 3])
@pytest.mark.parametrize("how", NETWORKS, ids=lambda f: f.__name__)
def test_the_naive_loop_on_an_input_of_its_own_for_every_member(how: Any, together: int | None) -> None:
    ours, theirs, x = network(how), network(how), X.clone()
    ensemble, expected = MCDropout(theirs, members=7), []
    for j in range(7):
        with torch.no_grad(), ensemble.member(j) as member:
            expected.append(member(X.clone()))
    got = MCDropout(ours, members=7, together=together).members(x)
    if together is None:
        assert torch.equal(got, torch.stack(expected))
    torch.testing.assert_close(got, torch.stack(expected))
    assert torch.equal(x, X)
    for name, value in theirs.state_dict().items():  # what a network does to itself it has done as often
        assert torch.equal(ours.state_dict()[name], value), name


def test_an_error_of_the_network_itself_is_not_hidden() -> None:
    def fails(n: Net, x: torch.Tensor) -> torch.Tensor:
        n.kept.append(x)
        if len(n.kept) > 2:
            raise ZeroDivisionError("mine")
        return n.end(n.features(x))

    with pytest.raises(ZeroDivisionError, match="mine"):
        MCDropout(network(fails), members=5).members(X)


@pytest.mark.parametrize("kind", ["pep", "deep", "list"])
def test_a_network_that_writes_to_its_input_shows_every_member_the_same_one(kind: str) -> None:
    net, x, y = network(normalises_its_input_in_place).eval(), X.clone(), torch.arange(5) % 3
    with torch.no_grad():
        alone = net(X.clone())
    if kind == "pep":
        members = calibrant.PEP(net, 0.0, members=3).members(x)
        assert calibrant.PEP.fit(net, (x, y), members=2).certificate.nll_at_zero == pytest.approx(
            float(nn.functional.cross_entropy(alone.double(), y))
        )
    elif kind == "deep":
        members = calibrant.ensembles.deep.DeepEnsemble([net, copy.deepcopy(net)]).members(x)
    else:
        members = calibrant.predict([net, net], [(x, y)]).logits
    assert all(torch.equal(m, alone) for m in members)
    assert torch.equal(x, X)


def test_dropout_goes_to_every_place_of_a_shared_module_once_and_comes_out_again() -> None:
    act = nn.ReLU()
    inner = nn.Sequential(nn.Linear(4, 4), act)
    model = nn.Sequential(inner, nn.Linear(4, 4), act, inner, nn.Linear(4, 3))
    before = [id(m) for m in model.modules()]
    insertion = insert(model, 0.5)
    assert len(insertion.names) == 2 and sum(isinstance(m, nn.Dropout) for m in model.modules()) == 2
    insertion.undo()
    assert [id(m) for m in model.modules()] == before


def test_several_inputs_by_name() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)

        def forward(self, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return self.head(self.drop(u * v))

    batches = [{"u": torch.ones(4, 4), "v": X[:4, 0, 0, :4], "labels": torch.tensor([0, 1, 2, 0])}]
    ensemble = MCDropout(Two(), members=6)
    members = ensemble.predict(batches, keep_members=True).logits
    pooled = torch.log_softmax(members.double(), -1).logsumexp(0) - torch.tensor(6.0, dtype=torch.float64).log()
    torch.testing.assert_close(ensemble.predict(batches).logits, pooled)


def test_weights_are_back_while_whoever_takes_a_members_logits_fails() -> None:
    net = network(lambda n, x: n.end(n.features(x)))
    before = copy.deepcopy(net.state_dict())
    try:
        for _ in calibrant.PEP(net, 0.1, members=3).over([X]):
            raise KeyboardInterrupt
    except KeyboardInterrupt:  # the generator still lives in the traceback
        assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
