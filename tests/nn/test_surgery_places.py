"""Where `calibrant.smooth` puts its layers: every network of `surgery_networks.py`, every form of subsampling and of
global pooling. The libraries' own networks are in test_surgery_zoo.py, which runs where they are installed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant
from calibrant.errors import InputError
from calibrant.nn.smoothing import Smooth
from calibrant.nn.surgery import smoothed, unsmooth
from tests.nn.surgery_networks import CASES, Function, Net, conv, stem


def places(model: nn.Module, **options: Any) -> tuple[str, ...]:
    """Return the places; a layer that blurs over one or three axes has "1d." or "3d." before its name."""
    found = smoothed(calibrant.smooth(model, **options)).items()
    axes = {1: "1d.", 2: "", 3: "3d."}
    return tuple(place.replace(" ", f" {axes[layer.blur.axes]}") for place, layer in found)


@pytest.mark.parametrize("name", CASES)
def test_places_weights_and_undoing(name: str) -> None:
    """The places are those of the table, a checkpoint fits with and without the layers, and undoing is exact."""
    case = CASES[name]
    torch.manual_seed(0)
    model, x = case.make().eval(), torch.randn(case.shape)
    options = {"example": x} if case.given else {}
    with torch.no_grad():
        before = model(x)
        smooth = calibrant.smooth(model, **options)
        assert places(model, **options) == case.places
        assert not torch.equal(smooth(x), before) and torch.equal(model(x), before)
        assert smooth.state_dict().keys() == model.state_dict().keys()
        assert torch.equal(unsmooth(smooth)(x), before)
    assert all(not m._forward_pre_hooks and not m._forward_hooks for m in smooth.modules())


def test_a_larger_example_has_the_same_places() -> None:
    case = CASES["pooled shortcuts"]
    assert places(case.make(), example=torch.zeros(2, 3, 224, 224)) == case.places


SMALLER: dict[str, Callable[[Tensor], Tensor]] = {
    "max pool": lambda x: F.max_pool2d(x, 2), "average pool": lambda x: F.avg_pool2d(x, 2),
    "slice": lambda x: x[:, :, ::2, ::2], "nearest": lambda x: F.interpolate(x, scale_factor=0.5),
    "bilinear": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
}  # fmt: skip


class Chain(nn.Module):
    """Layers and functions in a sequence; only the layers are modules."""

    def __init__(self, steps: list[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.steps, self.layers = [steps], nn.ModuleList(m for m in steps if isinstance(m, nn.Module))

    def forward(self, x: Tensor) -> Tensor:
        layers = iter(self.layers)  # a copy's own
        for step in self.steps[0]:
            x = next(layers)(x) if isinstance(step, nn.Module) else step(x)
        return x


@pytest.mark.parametrize("seed", range(12))
def test_functions_are_smoothed_like_modules(seed: int) -> None:
    """A network whose pools and activations are functions computes the same as its twin, where each is a module."""
    draw, steps, left = random.Random(seed), [], 2
    for i in range(draw.randint(3, 8)):
        stride = 2 if i >= 2 and draw.random() < 0.2 else 1
        steps += [nn.Conv2d(4 if i else 3, 4, 3, stride, 1), F.relu]
        if i >= 1 and left and draw.random() < 0.5:
            steps.append(draw.choice(list(SMALLER.values())))
            left -= 1
    steps.append(lambda x: x.mean((2, 3)))
    twin = nn.Sequential(*(s if isinstance(s, nn.Module) else Function(s) for s in steps))
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        smooth = calibrant.smooth(Chain(steps))
        assert len(smoothed(smooth)) >= 1
        torch.testing.assert_close(smooth(x), calibrant.smooth(twin)(x))


MODES = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}
RESIZES = [(axes, mode, {}) for axes in MODES for mode in ["nearest", "nearest-exact", "area", *MODES[axes]]]
RESIZES += [(2, mode, {"antialias": True}) for mode in ("bilinear", "bicubic")]


@pytest.mark.parametrize("inference", [False, True], ids=["", "in inference mode"])
@pytest.mark.parametrize(("axes", "mode", "options"), RESIZES)
def test_resizing_is_subsampling(axes: int, mode: str, options: dict, inference: bool) -> None:
    """In inference mode torch dispatches other operations."""
    make: Any = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[axes]
    a, b, c = (make(i, 4, 3, padding=1) for i in (3, 4, 4))
    resize = Function(lambda x: F.interpolate(x, scale_factor=0.5, mode=mode, **options))
    with torch.inference_mode(inference):
        found = places(nn.Sequential(a, b, nn.ReLU(), resize, c), example=torch.randn(1, 3, *[8] * axes))
        apart = places(Chain([a, b, F.relu, resize.function, c]), example=torch.randn(1, 3, *[8] * axes))
    at = {1: "1d.", 2: "", 3: "3d."}[axes]
    assert (found, apart) == ((f"before {at}3",), (f"after {at}layers.1",))


def test_a_network_smoothed_in_inference_mode_can_be_trained() -> None:
    with torch.inference_mode():
        smooth = calibrant.smooth(CASES["functions"].make())
    smooth(torch.randn(1, 3, 32, 32)).sum().backward()
    assert all(p.grad is not None for p in smooth.parameters())


RELUS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "clamp": lambda z: z.clamp(min=0), "clamp_min": lambda z: z.clamp_min(0.0),
    "threshold": lambda z: F.threshold(z, 0.0, 0.0),
}  # fmt: skip
OTHERS: dict[str, Callable[[Tensor], Tensor]] = {
    "hardtanh": F.relu6, "clamp": lambda z: z.clamp(0, 6), "clamp_min": lambda z: z.clamp_min(0.5),
    "threshold": lambda z: F.threshold(z, 1.0, -7.0), "silu": F.silu,
}  # fmt: skip


def pooled(act: Callable[[Tensor], Tensor]) -> Net:
    return Net(lambda m, x: m.c(F.max_pool2d(act(m.b(F.relu(m.a(x)))), 2)), a=conv(3, 4), b=conv(4, 4), c=conv(4, 4))


@pytest.mark.parametrize("name", RELUS)
def test_any_form_of_relu_commutes_with_prob(name: str) -> None:
    act, layer, x = RELUS[name], Smooth(), 6 * torch.randn(2, 3, 16, 16)
    model = pooled(act).eval()
    smooth = calibrant.smooth(model)
    assert list(smoothed(smooth)) == ["after b"]
    with torch.no_grad():
        expected = model.c(F.max_pool2d(layer(act(model.b(F.relu(model.a(x))))), 2))
        torch.testing.assert_close(smooth(x), expected)


@pytest.mark.parametrize("name", OTHERS)
def test_other_activations_do_not_commute_with_prob(name: str) -> None:
    """SS Eq. 41 holds for ReLU: Smooth before another activation differs from Smooth after it."""
    act = OTHERS[name]
    with pytest.raises(InputError, match=rf"max_pool2d.* the {name} of the output of 'b'.*ReLU alone.*where='after b'"):
        calibrant.smooth(pooled(act))
    assert places(nn.Sequential(conv(3, 4), conv(4, 4), Function(act), nn.MaxPool2d(2))) == ("before 3",)


def test_a_blur_without_prob_does_not_commute_with_relu() -> None:
    with pytest.raises(InputError, match="the relu of the output of 'b', and a blur without Prob"):
        calibrant.smooth(pooled(F.relu), prob="identity")


POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "at once": lambda z: z.mean((2, 3)),
    "axis by axis": lambda z: z.mean(-1).mean(-1),
    "axis by axis, kept": lambda z: z.mean(3, keepdim=True).mean(2, keepdim=True).flatten(1),
    "maximum, axis by axis": lambda z: z.amax(-1).amax(-1),
    "maximum with its places": lambda z: z.max(-1)[0].max(-1)[0],
    "sum, axis by axis": lambda z: z.sum(-1).sum(-1) / 256,
    "channels last": lambda z: z.permute(0, 2, 3, 1).mean((1, 2)),
    "channels last, copied": lambda z: z.permute(0, 2, 3, 1).contiguous().mean((1, 2)),
    "channels last, axis by axis": lambda z: z.permute(0, 2, 3, 1).mean(1).mean(1),
    "flat": lambda z: z.flatten(2).mean(-1),
    "tokens": lambda z: z.flatten(2).transpose(1, 2).mean(1),
    "the largest few": lambda z: z.flatten(2).topk(4)[0].mean(-1),
}
NO_POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "over channels": lambda z: z.mean(1).mean(-1)[:, :4], "over one axis": lambda z: z.mean(-1).flatten(1)[:, :4],
}  # fmt: skip


@pytest.mark.parametrize("how", [*POOLINGS, *NO_POOLINGS])
def test_every_form_of_global_pooling_is_found(how: str) -> None:
    pool = {**POOLINGS, **NO_POOLINGS}[how]
    net = Net(lambda m, x: m.fc(pool(m.b(m.a(x)))), a=stem(), b=nn.Sequential(conv(4, 6, 2), nn.ReLU()),
        fc=nn.Linear(6 if how in POOLINGS else 4, 5))  # fmt: skip
    assert places(net) == (("before b.0", "after b") if how in POOLINGS else ("before b.0",))


def test_torchscript_inside_a_network_is_traced() -> None:
    with pytest.warns(DeprecationWarning):
        bend, stride = torch.jit.script(nn.ReLU()), torch.jit.script(conv(4, 4, 2))
        stage = torch.jit.script(nn.Sequential(conv(4, 4), nn.ReLU(), conv(4, 4, 2)))
    ahead = (conv(3, 4), bend, conv(4, 4), bend)
    assert places(nn.Sequential(*ahead, conv(4, 4, 2), nn.Flatten())) == ("before 4",)
    found = places(nn.Sequential(*ahead, stride, nn.Flatten()))
    assert found == ("after 2",), "it takes no layer itself, so as with a function after what gave its map"
    with pytest.raises(InputError, match="subsamples a map that no module returns; make it a module"):
        calibrant.smooth(nn.Sequential(*ahead, stage, nn.Flatten()))
