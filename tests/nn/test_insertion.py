"""Inserted layers: copies take them along, other surgery leaves them in place, taking them out leaves nothing."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn

import calibrant
from calibrant.ensembles.dropout import MCDropout, insert
from calibrant.errors import CalibrantWarning, InputError
from calibrant.nn import build
from calibrant.nn.activations import relu6
from calibrant.nn.surgery import smoothed, unsmooth

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
PLACES = ["before layer2.0", "before layer3.0", "after layer3"]


def network() -> nn.Module:
    torch.manual_seed(0)
    return build("resnet20", classes=10).eval()


@pytest.mark.parametrize("name", ["resnet20", "vgg16", "preact_resnet18"])
def test_taking_them_out_leaves_nothing(name: str) -> None:
    torch.manual_seed(0)
    plain = build(name, classes=10).eval()
    model = unsmooth(calibrant.smooth(plain))
    assert not smoothed(model) and torch.equal(model(X), plain(X))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert list(map(type, model.modules())) == list(map(type, plain.modules()))


def test_copies_files_and_wrappers_take_them_along() -> None:
    model = calibrant.smooth(network())
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert list(smoothed(other)) == PLACES and torch.equal(other(X), model(X))
        next(iter(smoothed(other).values())).prob.tau = 1.0  # its own layer, not the first one's
        assert not torch.equal(other(X), model(X))
    wrapped = nn.Sequential(model, nn.Softmax(-1))
    assert list(smoothed(wrapped)) == [place.replace(" ", " 0.") for place in PLACES]
    assert list(smoothed(wrapped[0])) == PLACES
    assert list(model.state_dict()) == list(network().state_dict()) and repr(model) == repr(network())


def with_dropout(model: nn.Module) -> nn.Module:
    insert(model, 0.5, where=lambda _, m: isinstance(m, nn.ReLU))
    return model


@pytest.mark.parametrize("change", [relu6, with_dropout])
def test_who_changes_the_activations_keeps_the_layers_behind_them(change: Callable[[nn.Module], nn.Module]) -> None:
    """Bounded or with dropout, what a block gives is smoothed afterwards, whichever was done first."""
    outputs = []
    for model in (change(calibrant.smooth(network())), calibrant.smooth(change(network()))):
        assert list(smoothed(model)) == PLACES
        torch.manual_seed(0)
        outputs.append(model.train()(X))
    assert torch.equal(*outputs)


def test_the_skips_of_our_u_net_keep_their_maps() -> None:
    assert list(smoothed(calibrant.smooth(build("unet", classes=3, width=4)))) == [
        f"before pools.{i}" for i in range(4)
    ]


def test_a_hook_on_a_layer_is_heard_by_every_member() -> None:
    model = calibrant.smooth(build("resnet20", classes=5, dropout=0.3))
    heard: list[int] = []
    next(iter(smoothed(model).values())).register_forward_hook(lambda *_: heard.append(1))
    with pytest.warns(CalibrantWarning, match="somebody's hooks"):
        MCDropout(model, 3).members(X)
    assert len(heard) == 3


def test_a_map_smaller_than_the_kernel_is_named_by_its_place() -> None:
    with pytest.raises(InputError, match=r"after 'layer3': a map of 1×1 is smaller"):
        calibrant.smooth(network())(X[..., :4, :4])


def test_symbolic_tracing_and_export_follow_the_hooks() -> None:
    model = calibrant.smooth(network())
    assert torch.equal(torch.fx.symbolic_trace(model)(X), model(X))
    torch.testing.assert_close(torch.export.export(model, (X,)).module()(X), model(X))
