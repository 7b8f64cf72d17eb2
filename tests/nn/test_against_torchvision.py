"""If torchvision is installed: its networks and ours return the same logits with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from calibrant.nn import build, load_weights

models: Any = pytest.importorskip("torchvision.models", reason="torchvision is not installed (extra [vision])")
IMAGENET = {"classes": 7, "size": 96, "stem": "imagenet"}


def filled(model: nn.Module) -> nn.Module:
    """Set BatchNorm's statistics to other values than 0 and 1."""
    rng = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.1, generator=rng)
            module.running_var.uniform_(0.5, 1.5, generator=rng)
    return model.eval()


def agree(ours: nn.Module, theirs: nn.Module) -> None:
    x = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours.eval()(x), theirs(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("ours", "theirs"), [("resnet18",) * 2, ("resnet50",) * 2, ("resnext50", "resnext50_32x4d")])
def test_weight_files_load_by_name(tmp_path: Path, ours: str, theirs: str) -> None:
    other = filled(getattr(models, theirs)(num_classes=7))
    save_file(other.state_dict(), tmp_path / "w.safetensors")
    agree(load_weights(build(ours, **IMAGENET), tmp_path / "w.safetensors"), other)


@pytest.mark.parametrize("name", ["densenet121", "alexnet", "inception_v3"])
def test_parameters_in_order_make_the_same_function(name: str) -> None:
    options = {"aux_logits": False, "init_weights": False} if name == "inception_v3" else {}
    other = filled(getattr(models, name)(num_classes=7, **options))
    own = build(name, **(IMAGENET if name == "densenet121" else {"classes": 7, "size": 96}))
    values = [value for key, value in other.state_dict().items() if not key.endswith("num_batches_tracked")]
    keys = [key for key in own.state_dict() if not key.endswith("num_batches_tracked")]
    own.load_state_dict(dict(zip(keys, values, strict=True)), strict=False)
    agree(own, other)
