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


def test_a_rate_applies_to_the_selected_dropouts(net: Net) -> None:
    net.head[1] = nn.Dropout(1.0)  # switched on, every logit would be the last bias
    members = MCDropout(net, members=3, p=0.4, where="body").members(X)
    assert not torch.allclose(members, net.head[2].bias.expand_as(members))
    for p in (1.0, "a"):
        with pytest.raises(InputError, match=f"p={p!r} must be a number"):
            MCDropout(net, p=p, where="body")  # type: ignore[arg-type]


NO_DROPOUT = "names no dropout of Net; it has body.2, body.4, head.1"
REFUSED = {
    "a part of a name": ("bod", f"where='bod' {NO_DROPOUT}"),
    "another module": ("body.3", f"where='body.3' {NO_DROPOUT}"),
    "one of two names": (["body", "tail"], f"where='tail' {NO_DROPOUT}"),
    "no module": (lambda name, module: False, "where picks no dropout of Net; it has body.2, body.4, head.1"),
    "no name": ((), "where picks no dropout"),
    "a number": (3, "where=3 is not a name; give dropouts' names"),
    "a number in a list": (["body", 4], "where=4 is not a name"),
    "a function of the name alone": (lambda name: True, r"where\(name, module\) -> bool; this one takes \(name\)"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_selects_no_dropout_is_refused(net: Net, kind: str) -> None:
    where, says = REFUSED[kind]
    with pytest.raises(InputError, match=says):
        MCDropout(net, where=where)  # type: ignore[arg-type]


def test_a_store_of_distances_distinguishes_selections(net: Net) -> None:
    def named(where: object) -> str:
        return weights_hash(MCDropout(net, 3, where=where))  # type: ignore[arg-type]

    assert named("body") == named(["body"]) == named(("body.2", "body.4")) == named(lambda name, m: m.p < 0.5)
    assert len({named("body"), named("head"), named(["body.2"]), named(None)}) == 4


@pytest.mark.parametrize("row", ["table_c1/resnet18_mlp", "table_c1/vgg16_gap"])
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
