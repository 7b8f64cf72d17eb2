"""More ways of writing a network: activation first, slices that subsample, padding inside a layer, one map with two
readers, TorchScript."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant
from calibrant.errors import InputError
from calibrant.nn import build
from calibrant.nn.smoothing import Smooth
from calibrant.nn.surgery import smoothed, stages, unsmooth

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1)


class Sliced(nn.Module):
    """Subsamples by a slice, as shortcuts without parameters do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.fc = conv(3, 4), conv(4, 4), conv(4, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b(F.relu(self.a(x))))
        return self.fc(F.relu(self.c(x[:, :, ::2, ::2])).mean((2, 3)))


class Same(nn.Conv2d):
    """TensorFlow's padding inside the layer: the convolution reads another tensor than the module took."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, self.stride)


class Forked(nn.Module):
    """A strided convolution and a functional pool read one map."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d, self.fc = conv(3, 4), conv(4, 4), conv(4, 4, 2), conv(8, 4), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b(F.relu(self.a(x))))
        return self.fc(F.relu(self.d(torch.cat([self.c(x), F.max_pool2d(x, 2)], 1))).mean((2, 3)))


def test_a_pre_activation_block_is_smoothed_as_a_whole() -> None:
    """The shortcut and the first convolution both read the activated map, so there is one place (SS Fig. 4)."""
    before = ["stages.1.0", "stages.2.0", "stages.3.0"]
    assert stages(build("preact_resnet18", classes=10)) == (before, ["act"])


def test_a_slice_that_takes_every_second_point_is_subsampling() -> None:
    model, layer = Sliced().eval(), Smooth()
    assert stages(model) == ([], ["b", "c"])
    with torch.no_grad():
        y = layer(F.relu(model.b(F.relu(model.a(X)))))[:, :, ::2, ::2]
        expected = model.fc(layer(F.relu(model.c(y))).mean((2, 3)))
        torch.testing.assert_close(calibrant.smooth(model)(X), expected)


def test_a_layer_with_its_own_padding_is_smoothed_before_the_padding() -> None:
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4), nn.ReLU(), Same(4, 4, 3, 2), nn.ReLU(), conv(4, 4)).eval()
    smooth = calibrant.smooth(model)
    assert list(smoothed(smooth)) == ["before 4"]
    with torch.no_grad():
        torch.testing.assert_close(smooth(X), model[4:](Smooth()(model[:4](X))))


def test_a_map_with_two_readers_is_smoothed_once() -> None:
    model, layer = Forked().eval(), Smooth()
    with torch.no_grad():
        y = layer(F.relu(model.b(F.relu(model.a(X)))))
        y = F.relu(model.d(torch.cat([model.c(y), F.max_pool2d(y, 2)], 1)))
        torch.testing.assert_close(calibrant.smooth(model)(X), model.fc(layer(y).mean((2, 3))))


def test_the_stem_is_smoothed_if_nothing_else_subsamples() -> None:
    one = nn.Sequential(conv(3, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 16 * 16, 5))
    assert list(smoothed(calibrant.smooth(one))) == ["before 2"]
    two = nn.Sequential(*one[:3], conv(4, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 8 * 8, 5))
    assert list(smoothed(calibrant.smooth(two))) == ["before 5"]
    with pytest.raises(InputError, match="no stage"):  # the patches of a transformer are not a map
        calibrant.smooth(nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Flatten(2)))


def test_torchscript_is_refused() -> None:
    model = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4), nn.ReLU(), nn.MaxPool2d(2), conv(4, 4)).eval()
    with pytest.warns(DeprecationWarning):
        script = torch.jit.script(model)
    with pytest.raises(InputError, match="TorchScript"):
        calibrant.smooth(script)


def test_torchscript_inside_a_network_is_traced() -> None:
    with pytest.warns(DeprecationWarning):
        bend, stride = torch.jit.script(nn.ReLU()), torch.jit.script(conv(4, 4, 2))
        stage = torch.jit.script(nn.Sequential(conv(4, 4), nn.ReLU(), conv(4, 4, 2)))
    ahead = (conv(3, 4), bend, conv(4, 4), bend)
    assert list(smoothed(calibrant.smooth(nn.Sequential(*ahead, conv(4, 4, 2), nn.Flatten())))) == ["before 4"]
    found = list(smoothed(calibrant.smooth(nn.Sequential(*ahead, stride, nn.Flatten()))))
    assert found == ["after 2"], "it takes no layer itself, so as with a function after what gave its map"
    with pytest.raises(InputError, match="subsamples a map that no module returns; make it a module"):
        calibrant.smooth(nn.Sequential(*ahead, stage, nn.Flatten()))


@pytest.mark.filterwarnings("ignore:.*quantize.* deprecated:UserWarning")
def test_a_quantised_network_is_refused() -> None:
    whole = nn.Sequential(torch.ao.nn.quantized.Conv2d(3, 4, 3), nn.Flatten())
    with pytest.raises(InputError, match="this model is quantised, .*; smooth it before quantising"):
        calibrant.smooth(whole)


class OwnConvolution(nn.Module):
    """A convolution that is not one of torch's classes, as with equalised learning rates."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.weight, self.stride = nn.Parameter(torch.ones(outputs, inputs, 3, 3)), stride

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight / 9, stride=self.stride, padding=1)


def test_custom_convolutions_are_found_with_an_example() -> None:
    own = OwnConvolution
    net = nn.Sequential(own(3, 4), own(4, 4), own(4, 4, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    assert list(smoothed(calibrant.smooth(net, example=X))) == ["before 2", "before 3"]
    with pytest.raises(InputError, match="has no convolution.* pass example="):
        calibrant.smooth(net)


@pytest.mark.parametrize("called", [calibrant.smooth, smoothed, unsmooth])
def test_other_objects_than_networks_are_refused(called: Callable[[Any], object]) -> None:
    with pytest.raises(InputError, match="smooth a network .*, not str"):
        called("resnet18")


class PooledShortcut(nn.Module):
    """A residual block whose shortcut is an average pool and a 1×1 convolution (ResNet-D)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.a, self.b = conv(inputs, outputs, 2), conv(outputs, outputs)
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.b(F.relu(self.a(x))) + self.shortcut(x))


class Pools(nn.Module):
    """The average and the maximum of the map, added, and a 1×1 convolution: not a residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4)), nn.Conv2d(4, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.body(x))
        return self.head(F.adaptive_avg_pool2d(x, 1) + F.adaptive_max_pool2d(x, 1)).flatten(1)


def test_a_shortcut_pooled_to_one_point_is_not_global_pooling() -> None:
    """timm's resnet10t has one block per stage, and 32 pixels end in one point."""
    blocks = [PooledShortcut(i, o) for i, o in ((4, 4), (4, 6), (6, 8))]
    model = nn.Sequential(
        nn.Sequential(conv(3, 4, 2), nn.ReLU(), nn.MaxPool2d(2), conv(4, 4)),
        *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    assert list(smoothed(calibrant.smooth(model))) == ["before 1", "before 2", "before 3", "before 4"]
    assert list(smoothed(calibrant.smooth(model, example=torch.zeros(2, 3, 224, 224))))[-1] == "before 4"


def test_two_poolings_that_are_added_are_global_pooling() -> None:
    assert list(smoothed(calibrant.smooth(Pools()))) == ["after body"]


def test_in_inference_mode_the_places_are_the_same() -> None:
    """In inference mode torch dispatches conv2d instead of its parts."""
    expected = list(smoothed(calibrant.smooth(build("resnet20", classes=5))))
    with torch.inference_mode():
        born_there = build("resnet20", classes=5)
        for inplace in (False, True):
            assert list(smoothed(calibrant.smooth(born_there, inplace=inplace))) == expected


@pytest.mark.parametrize("dropped", [False, True], ids=["at once", "with a layer in between"])
def test_expanding_one_point_for_an_mlp_does_not_hide_the_last_pool(dropped: bool) -> None:
    """torchvision's VGG on 32 × 32 images: the last pool leaves one point, which an adaptive pool repeats 49 times."""
    features = nn.Sequential()
    for inputs, outputs in zip((3, 4, 4, 4, 4), (4, 4, 4, 4, 4), strict=True):
        features.extend([conv(inputs, outputs), nn.ReLU(), conv(outputs, outputs), nn.ReLU(), nn.MaxPool2d(2)])
    between = [nn.Dropout2d(0.1)] if dropped else []
    net = nn.Sequential(features, nn.AdaptiveAvgPool2d(7), *between, nn.Flatten(), nn.Linear(4 * 49, 5))
    assert stages(net, X) == ([f"0.{i}" for i in (4, 9, 14, 19, 24)], [])
