"""Predictors that are functions, methods and other objects. The networks behind them are found."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import calibrant
from calibrant.attacks import DDN, Bounds, robustness
from calibrant.attacks.networks import weights_hash
from calibrant.errors import InputError
from calibrant.nn.activations import relu6
from tests.attacks.conftest import Victim


class Own:
    """A user's predictor, whose network is in an attribute of an unusual name."""

    def __init__(self, net: nn.Module) -> None:
        self.parts = {"net": [net]}

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self.parts["net"][0](x)
        return out


def _through(net: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = net(x)
    return out


def wrappings(net: nn.Module) -> dict[str, Any]:
    return {
        "closure": lambda x: net(x),
        "method": net.forward,
        "object": Own(net),
        "partial": functools.partial(_through, net),
        "function of an object": Own(net).__call__,
        "mapping": lambda x: {"logits": net(x)},
    }


@pytest.mark.parametrize("kind", wrappings(nn.Identity()))
def test_a_wrapped_network_is_attacked_in_eval_mode_and_left_as_found(kind: str, victim: Victim) -> None:
    model, x = victim.model, victim.x[:12]
    plain = DDN(bounds=victim.bounds).run(model, x)
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    try:
        found = DDN(bounds=victim.bounds).run(wrappings(model)[kind], x)
        assert all(m.training for m in model.modules())
        assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    finally:
        model.eval()
    torch.testing.assert_close(found.distance, plain.distance)


def test_a_store_distinguishes_predictors(victim: Victim, tmp_path: Path) -> None:
    """Weights alone do not identify a predictor: its layers, smoothing and settings count too."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2), nn.Flatten(), nn.Linear(676, 10))
    other = nn.Sequential(net[0], nn.Tanh(), *net[2:])
    twin = nn.Sequential(*net)
    with torch.no_grad():
        moved = nn.Sequential(*net[:-1], nn.Linear(676, 10))
    # two kinds of layers at one place
    both = [relu6(calibrant.smooth(net, "after 1", kernel=kernel)) for kernel in ((1, 1), (1, 2, 1))]
    different = net, other, moved, calibrant.smooth(net, ["2"]), relu6(net), *both, Own(net), Own(moved)
    hashes = [weights_hash(each) for each in different]
    assert len(set(hashes)) == len(hashes)
    assert weights_hash(twin) == weights_hash(net) and weights_hash(Own(twin)) == weights_hash(Own(net))
    marked = wrappings(net)["closure"]
    marked.class_axis = 1
    for given in (*(wrappings(net)[kind] for kind in ("closure", "method", "partial")), marked):  # code may differ
        with pytest.raises(InputError, match="a store cannot tell this .* pass the network itself"):
            robustness(given, victim.x, bounds=victim.bounds, store=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_attacks_work_inside_inference_mode_and_autocast(victim: Victim) -> None:
    """Inference mode records no gradients, and constants made in it must not be cached."""
    box = Bounds(mean=(0.3125,), std=(0.25,))
    x = box.inputs(victim.bounds.pixels(victim.x[:12]), torch.float32)
    with torch.inference_mode():
        inside = DDN(bounds=box).run(victim.model, x.clone())  # an inference tensor
    with torch.autocast("cpu", dtype=torch.bfloat16):  # logits in bfloat16 would be too coarse for the check
        rounded = DDN(bounds=box).run(victim.model, x)
    outside = DDN(bounds=box).run(victim.model, x)
    for found in (inside, rounded):
        assert torch.equal(found.distance, outside.distance) and bool(found.success.all())
