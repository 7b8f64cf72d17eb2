"""MC dropout with some of a network's dropouts selected. The others are off, as in any network at test time."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks.networks import weights_hash
from calibrant.ensembles import MCDropout, assemble
from calibrant.ensembles.ingredients import Ingredients
from calibrant.errors import InputError
from calibrant.nn import build
from calibrant.papers import experiments


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 16), nn.Dropout(0.2))
        self.head = nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.5), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


X = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "where",
    ["body", ["body"], ("body.2", "body.4"), lambda name, module: module.p < 0.5],
    ids=["name", "list", "exact names", "callable"],
)
def test_unselected_dropouts_are_off(net: Net, where: object) -> None:
    without = deepcopy(net)
    without.head[1] = nn.Identity()
    members = MCDropout(net, members=6, where=where).members(X)  # type: ignore[arg-type]
    assert torch.equal(members, MCDropout(without, members=6).members(X))
    assert not torch.equal(members, MCDropout(net, members=6).members(X))
    assert all(m.training for m in net.modules())  # the modes are restored
    assert [m.p for m in net.modules() if isinstance(m, nn.Dropout)] == [0.3, 0.2, 0.5]


def test_pooled_members_and_single_ones_agree(net: Net) -> None:
    some = MCDropout(net, members=4, where="head")
    with some.member(2) as network, torch.no_grad():
        assert torch.equal(network(X), some.members(X)[2])
    torch.testing.assert_close(some(X), some.members(X).double().log_softmax(-1).exp().mean(0).log())


def test_a_rate_applies_to_the_selected_dropouts(net: Net) -> None:
    net.head[1] = nn.Dropout(1.0)  # switched on, every logit would be the last bias
    members = MCDropout(net, members=3, p=0.4, where="body").members(X)
    assert not torch.allclose(members, net.head[2].bias.expand_as(members))
    for p in (1.0, "a"):
        with pytest.raises(InputError, match=f"p={p!r} must be a number"):
            MCDropout(net, p=p, where="body")  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["bod", "body.3", ["body", "tail"]])
def test_a_name_without_dropout_lists_the_dropouts(net: Net, where: object) -> None:
    with pytest.raises(InputError, match=r"where='.*' names no dropout of Net; it has body.2, body.4, head.1"):
        MCDropout(net, where=where)  # type: ignore[arg-type]


def test_selecting_nothing_is_an_error(net: Net) -> None:
    with pytest.raises(InputError, match="where picks no dropout of Net; it has body.2, body.4, head.1"):
        MCDropout(net, where=lambda name, module: False)
    with pytest.raises(InputError, match="where picks no dropout"):
        MCDropout(net, where=())


@pytest.mark.parametrize("where", [3, ["body", 4]])
def test_other_types_than_names_are_refused(net: Net, where: object) -> None:
    with pytest.raises(InputError, match=r"where=[34] is not a name; give dropouts' names"):
        MCDropout(net, where=where)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"where\(name, module\) -> bool; this one takes \(name\)"):
        MCDropout(net, where=lambda name: True)  # type: ignore[arg-type, misc]


def test_a_store_of_distances_distinguishes_selections(net: Net) -> None:
    def named(where: object) -> str:
        return weights_hash(MCDropout(net, 3, where=where))  # type: ignore[arg-type]

    assert named("body") == named(["body"]) == named(("body.2", "body.4")) == named(lambda name, m: m.p < 0.5)
    assert len({named("body"), named("head"), named(["body.2"]), named(None)}) == 4


def test_the_table_of_ensembles_accepts_where(net: Net) -> None:
    made = assemble("dropout", Ingredients([net], members=3, where=("head",)))
    assert isinstance(made, MCDropout) and made.where == ("head.1",) and made.size == 3


@pytest.mark.parametrize("row", ["table_e1/cifar100_vgg16_dropout", "table_c1/resnet18_mlp", "table_c1/vgg16_gap"])
def test_the_dropout_of_a_papers_mlp_is_not_sampled(row: str) -> None:
    """SS's code: the dropout of the blocks is always on, and that of the MLP is an nn.Dropout in eval mode."""
    [e] = experiments(f"ss/{row}")
    network = e.recipe.network
    options = {k: v for k, v in network.options.items() if k != "head_edge"}  # a hundred million weights
    small = {"hidden": (4,)} if options.get("head", "mlp") == "mlp" else {}
    model = build(network.name, classes=100, **options, **small)
    [dropout] = e.ensembles
    sampled = assemble("dropout", Ingredients([model], **dropout.options))
    names = {name for name, m in model.named_modules() if isinstance(m, nn.Dropout)}
    assert isinstance(sampled, MCDropout)
    with sampled.member(0) as network_on:
        on: set[str] = set()
        hooks = [
            m.register_forward_hook(lambda m, _, __, name=name: on.add(name) if m.training else None)
            for name, m in model.named_modules()
            if name in names
        ]
        network_on(torch.zeros(1, 3, 32, 32))
        for hook in hooks:
            hook.remove()
    assert on == {name for name in names if not name.startswith("head")} != set()
