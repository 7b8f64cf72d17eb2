"""`calibrant.smooth`: where it puts the layers, that it leaves the rest alone, and that it can be undone exactly."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import calibrant
from calibrant.errors import InputError
from calibrant.nn import build
from calibrant.nn.smoothing import Smooth
from calibrant.nn.surgery import smoothed, stages, unsmooth

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("resnet18", ["layer2.0", "layer3.0", "layer4.0"], ["layer4"]),  # SS: three and one
        ("resnet20", ["layer2.0", "layer3.0"], ["layer3"]),
        ("resnet29v2", ["stages.1.0", "stages.2.0"], ["act"]),  # pooling is a function: after the last map
        ("vgg16", ["stages.0.4", "stages.1.4", "stages.2.5", "stages.3.5", "stages.4.5"], []),
        ("densenet121", ["body.11", "body.28", "body.57"], ["body"]),
    ],
)
def test_stages_of_known_networks(name: str, before: list[str], after: list[str]) -> None:
    assert stages(build(name, classes=10, in_channels=3)) == (before, after)


def test_the_layer_smooths_what_the_module_takes() -> None:
    model = build("resnet20", classes=10, in_channels=3).eval()
    taken: list[torch.Tensor] = []
    model.layer2.register_forward_pre_hook(lambda m, args: taken.append(args[0]))
    smooth = calibrant.smooth(model, where="layer2")
    with torch.no_grad():
        by_hand = model.layer3(model.layer2(Smooth()(model.layer1(_stem(model, X)))))
        inside = smooth.layer3(smooth.layer2(smooth.layer1(_stem(smooth, X))))
    torch.testing.assert_close(inside, by_hand)


def _stem(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What reaches layer1 in one forward pass."""
    found: list[torch.Tensor] = []
    hook = model.layer1.register_forward_pre_hook(lambda m, args: found.append(args[0]))
    model(x)
    hook.remove()
    return found[0]


def test_copy_weights_names_and_undo() -> None:
    model = build("resnet20", classes=10, in_channels=3).eval()
    with torch.no_grad():
        before = model(X)
        smooth = calibrant.smooth(model)
        assert torch.equal(model(X), before) and not smoothed(model)  # the original is untouched
        assert not torch.equal(smooth(X), before)
        assert smooth.state_dict().keys() == model.state_dict().keys()
        assert all(torch.equal(v, model.state_dict()[k]) for k, v in smooth.state_dict().items())
        assert torch.equal(copy.deepcopy(smooth)(X), smooth(X))  # copies take the layers along
        assert torch.equal(unsmooth(smooth)(X), before) and not smoothed(smooth)


def test_inplace_reports_and_refuses_twice() -> None:
    model = build("resnet20", classes=10, in_channels=3)
    assert calibrant.smooth(model, inplace=True, kernel=(1, 2, 1), tau=5.0) is model
    assert list(smoothed(model)) == ["before layer2.0", "before layer3.0", "after layer3"]  # as they run
    assert all(layer.prob.tau == 5.0 for layer in smoothed(model).values())
    with pytest.raises(InputError, match="already"):
        calibrant.smooth(model)


def test_a_copy_stays_in_training_mode_and_trains() -> None:
    smooth = calibrant.smooth(build("resnet20", classes=10, in_channels=3))
    assert smooth.training
    smooth(X).sum().backward()
    assert all(p.grad is not None for p in smooth.parameters())


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(8, 2)), {}, "no convolution"),
        (nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()), {}, "no stage"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), {"where": "layer9"}, "0, 1"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), {"where": lambda n, m: False}, "matches no module"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), {"where": "1", "tau": -1.0}, "tau"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), {"where": 3}, "where=3 is not a name"),
        ("resnet18", {}, "smooth a network"),
    ],
)
def test_bad_input_is_named(model: Any, options: dict, says: str) -> None:
    with pytest.raises(InputError, match=says):
        calibrant.smooth(model, **options)
