"""ReLU6 everywhere (SS C.3): every ReLU is bounded, and undoing leaves no trace."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import calibrant
from calibrant.errors import InputError
from calibrant.nn import build
from calibrant.nn.activations import bounded, relu6, unrelu6

X = 4 * torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["resnet20", "resnet29v2"])
def test_every_relu_is_bounded_and_the_network_is_that_built_with_relu6(name: str) -> None:
    model, wanted = (build(name, classes=10, seed=3, **options).eval() for options in ({}, {"act": nn.ReLU6}))
    made = relu6(model)
    relus = [n for n, m in model.named_modules() if isinstance(m, nn.ReLU)]
    assert list(bounded(made)) == [f"after {n}" for n in relus] and relus and not bounded(model)
    with torch.no_grad():
        assert torch.equal(made(X), wanted(X))
        assert torch.equal(copy.deepcopy(made)(X), wanted(X))
        assert torch.equal(unrelu6(made)(X), model(X)) and not bounded(made)
    assert not any(m._forward_hooks for m in made.modules())


def test_a_shared_relu_is_bounded_once_before_other_hooks() -> None:
    shared = nn.ReLU(inplace=True)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), shared, nn.Conv2d(4, 4, 3), shared)
    seen: list[float] = []
    shared.register_forward_hook(lambda m, args, out: seen.append(out.max().item()))
    assert relu6(model, inplace=True) is model and list(bounded(model)) == ["after 1"]
    with torch.no_grad():
        model(100 * X)
        unrelu6(model)(100 * X)
    assert max(seen[:2]) == 6.0 < max(seen[2:]) and len(seen) == 4


def test_with_smoothing_and_as_an_option_of_build() -> None:
    model = build("resnet20", classes=10, smooth=True, relu6=True)
    assert len(bounded(model)) == 19 and len(calibrant.smoothed(model)) == 3
    assert model.state_dict().keys() == build("resnet20", classes=10).state_dict().keys()


def test_impossible_requests_are_errors() -> None:
    with pytest.raises(InputError, match=r"no nn\.ReLU"):
        relu6(nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU()))
    with pytest.raises(InputError, match="already"):
        relu6(relu6(nn.Sequential(nn.ReLU())))
