"""Networks of other libraries by name: the calls that each library gets, and the error if it is missing."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from calibrant.ensembles.reference import resolve
from calibrant.errors import InputError, MissingDependencyError
from calibrant.nn import build
from calibrant.nn.external import published


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Stand-ins for the libraries, so that the tests run without them."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def made(name: str, **options: Any) -> nn.Module:
        calls.append((name, options))
        model = nn.Linear(2, options.get("num_classes", 3))
        model.pretrained_cfg = {"mean": [0.5], "std": [0.2]}  # type: ignore[assignment]
        return model

    for module, maker in (("timm", "create_model"), ("torchvision.models", "get_model")):
        fake = ModuleType(module)
        setattr(fake, maker, made)
        fake.list_models = lambda: ["resnet18"]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module, fake)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    return calls


def test_calls(libraries: list[tuple[str, dict[str, Any]]]) -> None:
    one = build("timm:resnet18", classes=7, in_channels=1, drop_rate=0.1, seed=3)
    build("torchvision:resnet18", classes=7)
    assert libraries == [
        ("resnet18", {"num_classes": 7, "in_chans": 1, "drop_rate": 0.1}),
        ("resnet18", {"weights": None, "num_classes": 7}),
    ]
    before = torch.get_rng_state()
    again = build("timm:resnet18", classes=7, seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one.weight, again.weight)


def test_mistakes_are_named(libraries: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="timm has no model 'resnet_18'"):
        build("timm:resnet_18", classes=2)
    with pytest.raises(InputError, match="3 channels, not 1"):
        build("torchvision:resnet18", classes=2, in_channels=1)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingDependencyError, match=r"needs timm; pip install 'calibrant\[vision\]'"):
        build("timm:resnet18", classes=2)


def test_published_networks_have_the_mean_and_std_of_their_inputs(
    libraries: list[tuple[str, dict[str, Any]]],
) -> None:
    of_timm = resolve("timm:resnet18.a1_in1k")
    assert (of_timm.mean, of_timm.std) == ((0.5,), (0.2,)) and not of_timm.members[0].training
    assert resolve("torchvision:resnet18").mean == (0.485, 0.456, 0.406)
    published("torchvision", "resnet18", weights=False)
    assert [options for _, options in libraries] == [{"pretrained": True}, {"weights": "DEFAULT"}, {"weights": None}]
    with pytest.raises(InputError, match="torchvision has no model 'resnet'"):
        resolve("torchvision:resnet")


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_the_real_libraries(library: str) -> None:
    pytest.importorskip(library, reason=f"{library} is not installed (extra [vision])")
    model = build(f"{library}:resnet18", classes=4).eval()
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 4)
