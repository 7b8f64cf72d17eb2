"""Everything that makes a map smaller is found: resizing of every kind in one, two and three dimensions, power means;
and what stands between a layer and a pool is passed over only where that changes nothing."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant
from calibrant.errors import InputError
from calibrant.nn.smoothing import Smooth
from calibrant.nn.surgery import smoothed

CONVOLUTION = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
MODES = {
    1: ["nearest", "nearest-exact", "linear", "area"],
    2: ["nearest", "nearest-exact", "bilinear", "bicubic", "area"],
    3: ["nearest", "nearest-exact", "trilinear", "area"],
}
KINDS = [(axes, mode, {}) for axes in MODES for mode in MODES[axes]]
KINDS += [(2, mode, {"antialias": True}) for mode in ("bilinear", "bicubic")]


class Net(nn.Module):
    """Two convolutions, then `between`, which makes the map smaller, and one more convolution."""

    def __init__(self, between: Callable[[Tensor], Tensor], axes: int = 2) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.a, self.b, self.c = (CONVOLUTION[axes](i, 4, 3, padding=1) for i in (3, 4, 4))
        self.between, self.axes = between, tuple(range(2, 2 + axes))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.c(self.between(self.b(F.relu(self.a(x)))))).mean(self.axes)


@pytest.mark.parametrize("inference", [False, True], ids=["", "in inference mode"])
@pytest.mark.parametrize(("axes", "mode", "options"), KINDS)
def test_resizing_is_subsampling(axes: int, mode: str, options: dict, inference: bool) -> None:
    x = torch.randn(1, 3, *[8] * axes)
    resize = lambda x: F.interpolate(F.relu(x), scale_factor=0.5, mode=mode, **options)  # noqa: E731
    with torch.inference_mode(inference):
        assert list(smoothed(calibrant.smooth(Net(resize, axes), example=x))) == ["after b", "after c"]
        if not options:
            module = nn.Sequential(nn.ReLU(), nn.Upsample(scale_factor=0.5, mode=mode))
            found = smoothed(calibrant.smooth(Net(module, axes), example=x))
            assert list(found) == ["before between.1", "after c"]
            assert found["before between.1"].blur.axes == axes


def test_a_copy_made_in_inference_mode_can_be_trained() -> None:
    model = Net(nn.MaxPool2d(2))
    with torch.inference_mode():
        smooth = calibrant.smooth(model, example=torch.randn(1, 3, 8, 8))
    smooth(torch.randn(1, 3, 8, 8)).sum().backward()
    assert all(p.grad is not None for p in smooth.parameters())


class GeM(nn.Module):
    """The generalised mean over all points (Radenović 2018)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x.clamp(min=1e-6).pow(3), x.shape[2:]).pow(1 / 3)


@pytest.mark.parametrize(("axes", "pool"), [(1, nn.LPPool1d(2, 2)), (2, nn.LPPool2d(2, 2)), (2, nn.LPPool2d(3, 3, 2))])
def test_a_power_mean_is_one_pool(axes: int, pool: nn.Module) -> None:
    model, layer, x = Net(pool, axes).eval(), Smooth(axes=axes), torch.randn(2, 3, *[16] * axes)
    smooth = calibrant.smooth(model, example=x)
    assert list(smoothed(smooth)) == ["before between", "after c"]
    with torch.no_grad():
        y = F.relu(model.c(pool(layer(model.b(F.relu(model.a(x)))))))
        torch.testing.assert_close(smooth(x), layer(y).mean(model.axes))


def test_functional_and_global_power_means() -> None:
    assert list(smoothed(calibrant.smooth(Net(lambda x: F.lp_pool2d(F.relu(x), 2, 2))))) == ["after b", "after c"]
    body = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()]
    assert list(smoothed(calibrant.smooth(nn.Sequential(*body, GeM(), nn.Flatten())))) == ["before 4"]


RELUS = {
    "relu": F.relu,
    "clamp": lambda z: z.clamp(min=0),
    "clamp_min": lambda z: z.clamp_min(0.0),
    "threshold": lambda z: F.threshold(z, 0.0, 0.0),
}
OTHERS = {
    "hardtanh": F.relu6,
    "clamp": lambda z: z.clamp(0, 6),
    "clamp_min": lambda z: z.clamp_min(0.5),
    "threshold": lambda z: F.threshold(z, 1.0, -7.0),
    "silu": F.silu,
}


@pytest.mark.parametrize("name", RELUS)
def test_any_form_of_relu_commutes_with_prob(name: str) -> None:
    act, layer, x = RELUS[name], Smooth(), 6 * torch.randn(2, 3, 16, 16)
    model = Net(lambda z: F.max_pool2d(act(z), 2)).eval()
    smooth = calibrant.smooth(model)
    assert list(smoothed(smooth)) == ["after b", "after c"]
    with torch.no_grad():
        y = F.relu(model.c(F.max_pool2d(layer(act(model.b(F.relu(model.a(x))))), 2)))
        torch.testing.assert_close(smooth(x), layer(y).mean((2, 3)))


@pytest.mark.parametrize("name", OTHERS)
def test_other_activations_do_not_commute_with_prob(name: str) -> None:
    """SS Eq. 41 holds for ReLU: Smooth before another activation differs from Smooth after it."""
    act = OTHERS[name]
    with pytest.raises(InputError, match=rf"max_pool2d.* the {name} of the output of 'b'.*ReLU alone.*where='after b'"):
        calibrant.smooth(Net(lambda z: F.max_pool2d(act(z), 2)))
    assert list(smoothed(calibrant.smooth(Net(nn.Sequential(Function(act), nn.MaxPool2d(2)))))) == [
        "before between.1", "after c",
    ]  # fmt: skip


class Function(nn.Module):
    def __init__(self, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x)


def test_a_blur_without_prob_does_not_commute_with_relu() -> None:
    model = Net(lambda z: F.max_pool2d(F.relu(z), 2))
    with pytest.raises(InputError, match="the relu of the output of 'b', and a blur without Prob"):
        calibrant.smooth(model, prob="identity")


def test_a_resized_position_embedding_is_not_subsampling() -> None:
    class Embedded(Net):
        def __init__(self) -> None:
            super().__init__(nn.MaxPool2d(2))
            self.places = nn.Parameter(torch.randn(1, 4, 9, 9))

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.c(self.between(self.b(F.relu(self.a(x))))))
            places = F.interpolate(self.places, size=x.shape[2:], mode="bicubic", antialias=True)
            return self.fc(x.flatten(2).mean(2) + places.flatten(2).mean(2))

    model = Embedded()
    model.fc = nn.Linear(4, 2)
    assert list(smoothed(calibrant.smooth(model, example=torch.randn(2, 3, 8, 8)))) == ["before between", "after c"]


SMALLER = [
    lambda x: F.max_pool2d(x, 2), lambda x: F.avg_pool2d(x, 2), lambda x: x[:, :, ::2, ::2],
    lambda x: F.interpolate(x, scale_factor=0.5), lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
]  # fmt: skip


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
    """Of a network whose pools and activations are functions, the smoothed one computes what its twin's does, where
    each is a module."""
    draw, steps, left = random.Random(seed), [], 2
    for i in range(draw.randint(3, 8)):
        stride = 2 if i >= 2 and draw.random() < 0.2 else 1
        steps += [nn.Conv2d(4 if i else 3, 4, 3, stride, 1), F.relu]
        if i >= 1 and left and draw.random() < 0.5:
            steps.append(draw.choice(SMALLER))
            left -= 1
    steps.append(lambda x: x.mean((2, 3)))
    twin = nn.Sequential(*(s if isinstance(s, nn.Module) else Function(s) for s in steps))
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        smooth = calibrant.smooth(Chain(steps))
        assert len(smoothed(smooth)) >= 1
        torch.testing.assert_close(smooth(x), calibrant.smooth(twin)(x))
