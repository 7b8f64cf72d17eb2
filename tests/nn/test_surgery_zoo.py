"""`calibrant.smooth` on the libraries' own networks, random weights, where torchvision or timm are installed.

Their ways of writing a network are in test_surgery_patterns.py, which runs everywhere.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import calibrant
from calibrant.nn.surgery import smoothed, unsmooth

# Dynamo instantiates an autograd.Function, of which torch warns
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

RESNET = ["before layer2.0", "before layer3.0", "before layer4.0"]  # SS: three before subsampling, one before pooling

TORCHVISION = {
    "resnet18": [*RESNET, "before avgpool"],
    "resnet50": [*RESNET, "before avgpool"],
    "resnext50_32x4d": [*RESNET, "before avgpool"],
    "vgg16": [f"before features.{i}" for i in (4, 9, 16, 23, 30)],
    "vgg16_bn": [f"before features.{i}" for i in (6, 13, 23, 33, 43)],
    "densenet121": [*(f"before features.transition{i}.pool" for i in (1, 2, 3)), "after features"],
    "convnext_tiny": [*(f"before features.{i}.1" for i in (2, 4, 6)), "before avgpool"],
    "mobilenet_v2": 5,  # four strided depth-wise convolutions and the pooling
    "mobilenet_v3_small": 4,
    "efficientnet_b0": 5,
    "shufflenet_v2_x0_5": ["before stage3.0", "before stage4.0", "after conv5"],
    "regnet_y_400mf": 4,
}
TIMM = {
    "resnet18": [*RESNET, "before global_pool.pool"],
    "resnet50d": [*RESNET, "before global_pool.pool"],  # a deep stem and pooled shortcuts
    "resnet10t": [*RESNET, "before global_pool.pool"],  # one block a stage: one point at 32 pixels
    "resnext50_32x4d": [*RESNET, "before global_pool.pool"],
    "densenet121": 4,
    "convnext_atto": 4,
    "mobilenetv3_small_050": 4,
    "tf_mobilenetv3_small_075": 4,  # pads inside its convolutions
    "resnetv2_50": [
        *(f"before stages.{i}.blocks.0" for i in (1, 2, 3)),
        "before head.global_pool.pool",
    ],  # pre-activation
    "nf_resnet26": [*(f"before stages.{i}.0" for i in (1, 2, 3)), "before head.global_pool.pool"],  # ditto, scaled
}


def torchvision(name: str) -> nn.Module:
    models: Any = pytest.importorskip("torchvision.models", reason="torchvision is not installed", exc_type=ImportError)
    return models.get_model(name, weights=None, num_classes=10)


def timm(name: str) -> nn.Module:
    library: Any = pytest.importorskip("timm", reason="timm is not installed", exc_type=ImportError)
    if not library.is_model(name):
        pytest.skip(f"this timm has no {name}")
    return library.create_model(name, pretrained=False, num_classes=10)


def obeys(model: nn.Module, expected: list[str] | int) -> None:
    """Check the places, that everything else is unchanged bit for bit, and that undoing is exact."""
    model.eval()
    x = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(x)
        smooth = calibrant.smooth(model)
        found = list(smoothed(smooth))
        assert sorted(found) == sorted(expected) if isinstance(expected, list) else len(found) == expected, found
        assert smooth(x).shape == before.shape and bool(torch.isfinite(smooth(x)).all())
        assert smooth.state_dict().keys() == model.state_dict().keys()
        assert torch.equal(unsmooth(smooth)(x), before)


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name: str) -> None:
    obeys(torchvision(name), TORCHVISION[name])


@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str) -> None:
    obeys(timm(name), TIMM[name])


def test_a_compiled_and_trained_torchvision_network() -> None:
    model = calibrant.smooth(torchvision("resnet18")).train()
    out = torch.compile(model, backend="eager", fullgraph=True)(torch.randn(2, 3, 64, 64))
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    torch._dynamo.reset()
