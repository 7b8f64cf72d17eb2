"""The graph of MC dropout gives the members of the plain loop, and runs their shared part once."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode

import calibrant
from calibrant.ensembles import dropout
from calibrant.ensembles.dropout import MCDropout
from calibrant.ensembles.dropout_graph import group_size
from calibrant.errors import CalibrantWarning

X = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(3))


@pytest.fixture(autouse=True)
def _trace_small_networks_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(dropout, "SMALL", 0)
    yield


class Net(nn.Module):
    def __init__(self, how: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.how = how
        self.features, self.norm, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.drop, self.drop_in_place, self.head = nn.Dropout(0.5), nn.Dropout(0.3, inplace=True), nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.kept: list[Tensor] = []
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.how(self, x)

    def end(self, h: Tensor) -> Tensor:
        out: Tensor = self.head(self.drop(h).mean((2, 3)))
        return out


def adds_in_place_to_what_members_share(n: Net, x: Tensor) -> Tensor:
    kept = n.act(n.features(x))
    out = n.drop(kept)
    kept += out
    return n.head(n.act(kept).mean((2, 3)))


def writes_to_a_part_before_the_dropout(n: Net, x: Tensor) -> Tensor:
    h = n.features(x)
    h[:, :2].mul_(2.0)
    return n.end(h)


def writes_to_a_part_of_what_members_share(n: Net, x: Tensor) -> Tensor:
    h = n.features(x)
    dropped = n.drop(h)
    h[:, :2].mul_(2.0)
    h.add_(1.0)
    return n.head((h + dropped).mean((2, 3)))


def reads_a_view_after_a_member_wrote_to_it(n: Net, x: Tensor) -> Tensor:
    h = n.features(x)
    view = h[:, :2]
    h += n.drop(h)
    return n.head((h + view.mean(1, keepdim=True)).mean((2, 3)))


def writes_to_out(n: Net, x: Tensor) -> Tensor:
    h = n.features(x)
    dropped = n.drop(h)
    torch.add(h, 1.0, out=h)
    return n.head((h + dropped).mean((2, 3)))


def subtracts_the_mean_of_the_batch(n: Net, x: Tensor) -> Tensor:
    h = n.drop(n.features(x))
    return n.head((h - h.mean(0)).mean((2, 3)))


def stores_a_tensor_in_a_list(n: Net, x: Tensor) -> Tensor:
    n.kept.append(n.features(x).tanh())
    return n.head((n.drop(n.features(x)) + n.kept.pop()).mean((2, 3)))


def plain(n: Net, x: Tensor) -> Tensor:
    return n.end(n.act(n.norm(n.features(x))))


def takes_the_number_of_items(n: Net, x: Tensor) -> Tensor:
    return n.end(n.features(x).reshape(len(x), 4, 36, 1))


GRAPHS: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "plain": plain,
    "takes the number of items": takes_the_number_of_items,
    "adds in place to what members share": adds_in_place_to_what_members_share,
    "writes to a part before the dropout": writes_to_a_part_before_the_dropout,
    "writes to a part of what members share": writes_to_a_part_of_what_members_share,
    "reads a view after a member wrote to it": reads_a_view_after_a_member_wrote_to_it,
    "writes to out": writes_to_out,
    "subtracts the mean of the batch": subtracts_the_mean_of_the_batch,
    "stores a tensor in a list": stores_a_tensor_in_a_list,
    "drops in place": lambda n, x: n.end(n.drop_in_place(n.act(n.features(x)))),
    "items second": lambda n, x: n.head(n.drop(n.features(x).flatten(2).permute(2, 0, 1)).mean(0)),
    "a class for each pixel": lambda n, x: n.drop(n.features(x)),
    "masks a class": lambda n, x: plain(n, x).masked_fill(torch.tensor([False, True, False]), -torch.inf),
}


def counts_in_place(n: Net, x: Tensor) -> Tensor:
    n.seen += 1
    return n.end(n.features(x) * n.seen)


def counts_in_python(n: Net, x: Tensor) -> Tensor:
    n.calls += 1
    return n.end(n.features(x) * float(n.calls))


def updates_its_running_statistics(n: Net, x: Tensor) -> Tensor:
    h = n.features(x)
    return n.end(nn.functional.batch_norm(h, n.norm.running_mean, n.norm.running_var, training=True))


def normalises_its_input_in_place(n: Net, x: Tensor) -> Tensor:
    return n.end(n.features(x.sub_(0.5).div_(0.2)))


def uses_numpy(n: Net, x: Tensor) -> Tensor:
    h = n.features(x)
    return n.end(h) + torch.from_numpy(h.tanh().numpy().mean((2, 3)))[:, :3]


def packs_a_sequence(n: Net, x: Tensor) -> Tensor:
    packed: Any = pack_padded_sequence(x.mean(1), torch.tensor([5, 4, 3, 2, 2]), batch_first=True)
    return n.head(n.drop(packed.data[:5, :4]))


def decides_for_the_whole_batch(n: Net, x: Tensor) -> Tensor:
    h = n.features(x)
    d = n.drop(h)
    return n.head((d + h if d.mean() > h.mean() else d - h).mean((2, 3)))


WHOLE = {
    counts_in_place: "writes to its input, its weights or its buffers",
    counts_in_python: "changes its own attributes",
    updates_its_running_statistics: "updates its running statistics",
    normalises_its_input_in_place: "writes to its input",
    uses_numpy: "numpy",
    packs_a_sequence: "depend on the values of its input",
    decides_for_the_whole_batch: "data-dependent",
}


def network(how: Callable[[Net, Tensor], Tensor]) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net(how).eval()


def looped(ensemble: MCDropout, x: Tensor) -> Tensor:
    """Return the members of the plain loop, each run on its own copy of the input."""
    out = []
    for j in range(ensemble.size):
        with torch.no_grad(), ensemble.member(j) as member:
            out.append(member(x.clone()))
    return torch.stack(out)


@pytest.mark.parametrize("asked", [None, 3])
@pytest.mark.parametrize("how", GRAPHS)
def test_the_graph_gives_the_members_of_the_plain_loop(how: str, asked: int | None) -> None:
    ensemble, x = MCDropout(network(GRAPHS[how]), members=5, together=asked), X.clone()
    got, expected = ensemble.members(x), looped(ensemble, X)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)
    assert asked or torch.equal(got, expected)
    assert torch.equal(x, X) and not torch.equal(got[0], got[1])


@pytest.mark.parametrize("asked", [None, 3])
def test_a_network_with_its_classes_last_keeps_them_there(asked: int | None) -> None:
    model = network(lambda n, x: n.drop(n.features(x)).movedim(1, -1))
    model.class_axis = -1  # type: ignore[assignment]
    ensemble = MCDropout(model, members=5, together=asked)
    torch.testing.assert_close(ensemble.members(X), looped(ensemble, X))


def compares_each_item_with_one_of_the_others(n: Net, x: Tensor) -> Tensor:
    h = n.drop(n.features(x))
    return n.head((h - h.flip(0)).mean((2, 3)))


def test_a_network_that_mixes_stacked_members_runs_whole() -> None:
    how = compares_each_item_with_one_of_the_others
    expected = looped(MCDropout(network(how), members=5), X)
    assert torch.equal(MCDropout(network(how), members=5).members(X), expected)
    stacked = MCDropout(network(how), members=5, together=4)
    with pytest.warns(CalibrantWarning, match="its graph gives other numbers"):
        assert torch.equal(stacked.members(X), expected)
    assert torch.equal(stacked.members(X), expected)


@pytest.mark.parametrize("how", WHOLE, ids=lambda f: f.__name__)
def test_a_network_without_a_graph_runs_whole_and_warns_once(how: Any) -> None:
    ours, theirs, x = network(how), network(how), X.clone()
    ensemble = MCDropout(ours, members=4)
    with pytest.warns(CalibrantWarning, match=f"runs Net whole for every member: .*{WHOLE[how]}") as warned:
        got = ensemble.members(x)
    assert len(warned) == 1 and torch.equal(x, X)
    assert torch.equal(got, looped(MCDropout(theirs, members=4), X))
    for name, value in theirs.state_dict().items():  # a network that changes itself has done so equally often
        assert torch.equal(ours.state_dict()[name], value), name
    ensemble.members(x)  # a second warning would be an error


class Counting(TorchDispatchMode):
    convolutions = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.convolutions += func is torch.ops.aten.convolution.default
        return func(*args, **(kwargs or {}))


def test_the_shared_part_runs_once_per_batch_of_any_size() -> None:
    ensemble = MCDropout(network(plain), members=7)
    ensemble(X)  # traced
    for batch in (X, X[:2], X[:4]):
        ensemble.model.train(len(batch) == 2)  # the caller's mode does not matter
        with Counting() as seen:
            ensemble(batch)
        assert seen.convolutions == 1
    one = MCDropout(network(plain), members=7)
    for _ in range(dropout.MOST_GRAPHS + 1):
        assert torch.equal(one.members(X[:1]), looped(ensemble, X[:1]))


def test_a_single_item_of_a_network_that_reads_the_number_of_items() -> None:
    ensemble = MCDropout(network(takes_the_number_of_items), members=4)
    with pytest.warns(CalibrantWarning, match="reads the number of items"):
        assert torch.equal(ensemble.members(X[:1]), looped(ensemble, X[:1]))


def test_changed_weights_and_settings_are_used() -> None:
    net = network(plain)
    ensemble = MCDropout(net, members=3)
    ensemble.members(X)
    with torch.no_grad():
        net.features.weight.mul_(2.0)
    net.norm.eps = 0.5
    net.drop.p = 0.1
    assert torch.equal(ensemble.members(X), looped(ensemble, X))
    net.features = nn.Conv2d(3, 4, 3)
    assert torch.equal(ensemble.members(X), looped(ensemble, X))


def test_foreign_hooks_are_called_for_every_member() -> None:
    net, heard = network(plain), []
    net.features.register_forward_hook(lambda *_: heard.append(1))
    with pytest.warns(CalibrantWarning, match="hooks on its modules"):
        MCDropout(net, members=4).members(X)
    assert len(heard) == 4


def gives_wide_logits(n: Net, x: Tensor) -> Tensor:
    return adds_in_place_to_what_members_share(n, x).float()


@pytest.mark.parametrize("asked", [None, 3])
@pytest.mark.parametrize("how", [adds_in_place_to_what_members_share, gives_wide_logits])
def test_the_graph_agrees_under_autocast(how: Any, asked: int | None) -> None:
    ensemble = MCDropout(network(how), members=4, together=asked)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(ensemble.members(X), looped(ensemble, X), atol=0, rtol=1e-2 if asked else 0)


def test_a_smoothed_network_has_a_graph() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.5), nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip
    ensemble = MCDropout(calibrant.smooth(model, ["4"], example=X).eval(), members=3)
    assert torch.equal(ensemble.members(X), looped(ensemble, X))


def test_stacked_members_have_the_masks_of_the_plain_loop() -> None:
    """In float64 the orders of summation differ by very little, so that a wrong mask would be seen."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), nn.Dropout2d(0.4), nn.Conv2d(6, 4, 3), nn.Dropout(0.3, inplace=True),
        nn.Flatten(), nn.AlphaDropout(0.1), nn.Linear(64, 3),
    ).double().eval()  # fmt: skip
    ensemble = MCDropout(model, members=11, together=4)
    torch.testing.assert_close(ensemble.members(X.double()), looped(ensemble, X.double()), atol=1e-12, rtol=1e-12)


def test_a_used_ensemble_can_be_copied_and_pickled() -> None:
    ensemble = MCDropout(nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 3)), members=3)
    members = ensemble.members(X)
    for other in (copy.deepcopy(ensemble), pickle.loads(pickle.dumps(ensemble))):
        assert torch.equal(other.members(X), members)


def test_small_work_is_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(dropout, "export", None)
    ensemble = MCDropout(network(plain), members=4)
    assert torch.equal(ensemble.members(X), looped(ensemble, X))


def test_inputs_of_too_many_shapes_are_not_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropout, "MOST_GRAPHS", 2)
    ensemble = MCDropout(network(plain), members=3)
    for side in (8, 7):
        ensemble.members(X[..., :side])
    with pytest.warns(CalibrantWarning, match="more than 2 shapes"):
        assert torch.equal(ensemble.members(X[..., :6]), looped(ensemble, X[..., :6]))


def test_an_error_of_the_network_itself_is_not_hidden() -> None:
    def fails(n: Net, x: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    with pytest.warns(CalibrantWarning, match="mine"), pytest.raises(ZeroDivisionError, match="mine"):
        MCDropout(network(fails), members=5).members(X)


@pytest.mark.parametrize(
    ("members", "widest", "free", "expected"),
    [
        (50, 1000, 2**33, 50),
        (50, 2**26, 2**33, 8),  # large activations
        (50, 2**26, 2**31, 4),  # a small GPU
        (50, 2**31, 2**33, 1),
        (5, 1, 2**33, 1),  # too few to be worth a check
    ],
)
def test_how_many_members_share_a_batch_is_bounded_by_memory(
    members: int, widest: int, free: int, expected: int
) -> None:
    assert group_size(members, widest, free) == expected


def test_probabilities_instead_of_logits_are_reported() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 3), nn.Softmax(-1))
    with pytest.warns(CalibrantWarning, match="look like probabilities"):
        MCDropout(model, members=3).predict([(X, torch.zeros(5, dtype=torch.long))])
