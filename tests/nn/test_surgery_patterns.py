"""`calibrant.smooth` on small networks that show the patterns of the known libraries.

The libraries' own networks are in test_surgery_zoo.py, which runs where they are installed.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant
from calibrant.errors import InputError
from calibrant.nn.smoothing import Smooth
from calibrant.nn.surgery import smoothed, stages, unsmooth


def cbr(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, BatchNorm, in-place ReLU, as in torchvision."""
    layers = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(layers, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


class Bottleneck(nn.Module):
    """torchvision's block: 1×1, strided (grouped) 3×3, 1×1, with one in-place ReLU and an optional strided shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, groups: int = 1) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, groups=groups, bias=False)
        self.bn2, self.conv3 = nn.BatchNorm2d(width), nn.Conv2d(width, 2 * width, 1, bias=False)
        self.bn3, self.relu = nn.BatchNorm2d(2 * width), nn.ReLU(inplace=True)
        same = stride == 1 and inputs == 2 * width
        self.downsample = None if same else nn.Sequential(nn.Conv2d(inputs, 2 * width, 1, stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.relu(self.bn2(self.conv2(y)))))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class ResNet(nn.Module):
    """The form for ImageNet: 7×7/2 (or a deep stem), max pool, four stages, adaptive pool."""

    def __init__(self, groups: int = 1, deep: bool = False) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(cbr(3, 8, 3, 2), cbr(8, 8), cbr(8, 8)) if deep else cbr(3, 8, 7, 2)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        for i, (inputs, stride) in enumerate([(8, 1), (16, 2), (16, 2), (16, 2)], 1):
            setattr(
                self, f"layer{i}", nn.Sequential(Bottleneck(inputs, 8, stride, groups), Bottleneck(16, 8, 1, groups))
            )
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.conv1(x))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class VGG(nn.Module):
    """One long Sequential, an adaptive pool that enlarges to 7×7, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in [(3, 4), (4, 6), (6, 8)]:
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(True)]
            layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(2, 2)]
        self.features, self.avgpool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(nn.Linear(8 * 49, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class DenseLayer(nn.Module):
    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 4, 3, padding=1, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(self.relu(self.norm(x)))], 1)


class DenseNet(nn.Module):
    """Transitions end in AvgPool2d. The last ReLU, in place, and the global pooling are functions."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential()
        self.features.add_module("conv0", nn.Conv2d(3, 8, 7, 2, 3, bias=False))
        self.features.add_module("pool0", nn.MaxPool2d(3, 2, 1))
        for i in (1, 2):
            self.features.add_module(f"denseblock{i}", nn.Sequential(DenseLayer(8), DenseLayer(12)))
            transition = nn.Sequential()
            transition.add_module("norm", nn.BatchNorm2d(16))
            transition.add_module("relu", nn.ReLU(inplace=True))
            transition.add_module("conv", nn.Conv2d(16, 8, 1, bias=False))
            transition.add_module("pool", nn.AvgPool2d(2, 2))
            self.features.add_module(f"transition{i}", transition)
        self.features.add_module("denseblock3", DenseLayer(8))
        self.features.add_module("norm5", nn.BatchNorm2d(12))
        self.classifier = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.features(x), inplace=True)
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(out, (1, 1)), 1))


class Permute(nn.Module):
    def __init__(self, *order: int) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(self.order)


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A depth-wise 7×7, then channels last: LayerNorm, a wide Linear, GELU, a narrow Linear; then channels first
    again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(width, width, 7, padding=3, groups=width), Permute(0, 2, 3, 1), nn.LayerNorm(width),
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), Permute(0, 3, 1, 2),
        )  # fmt: skip
        self.layer_scale = nn.Parameter(torch.full((width, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer_scale * self.block(x) + x


class ConvNeXt(nn.Module):
    """A patchify stem of stride 4, and LayerNorm with 2×2/2 between the stages."""

    def __init__(self) -> None:
        super().__init__()
        stages: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, 8, 4, 4), LayerNorm2d(8))]
        for inputs, outputs in [(8, 12), (12, 16)]:
            stages += [nn.Sequential(ConvNeXtBlock(inputs), ConvNeXtBlock(inputs))]
            stages += [nn.Sequential(LayerNorm2d(inputs), nn.Conv2d(inputs, outputs, 2, 2))]
        self.features = nn.Sequential(*stages, nn.Sequential(ConvNeXtBlock(16)))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(LayerNorm2d(16), nn.Flatten(1), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(x)))


class Squeeze(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.fc(self.avgpool(x)))


class Inverted(nn.Module):
    """MobileNet's block: widen, strided depth-wise, squeeze and excite, narrow; a shortcut if the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.shortcut = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            cbr(inputs, 2 * inputs, 1), cbr(2 * inputs, 2 * inputs, 3, stride, groups=2 * inputs),
            Squeeze(2 * inputs), nn.Conv2d(2 * inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.shortcut else self.conv(x)


class MobileNet(nn.Module):
    """Global pooling is a function, as in torchvision's MobileNetV2."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [Inverted(8, 8, 1), Inverted(8, 12, 2), Inverted(12, 12, 1), Inverted(12, 16, 2)]
        self.features = nn.Sequential(cbr(3, 8, 3, 2), *blocks, cbr(16, 24, 1))
        self.classifier = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(self.features(x), (1, 1)), 1))


class Tutorial(nn.Module):
    """All layers without weights are functions, and the convolutions are not padded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3)
        self.conv3, self.conv4 = nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        x = F.max_pool2d(F.relu(self.conv4(F.relu(self.conv3(x)))), 2)
        return self.fc(x.mean((2, 3)))


class UNet(nn.Module):
    """One pool is used at every level, and skip connections are concatenated."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Sequential(cbr(3, 4), cbr(4, 4)), nn.Sequential(cbr(4, 8), cbr(8, 8))
        self.pool, self.middle = nn.MaxPool2d(2), cbr(8, 8)
        self.up = nn.Upsample(scale_factor=2)
        self.dec2, self.dec1 = cbr(16, 4), cbr(8, 4)
        self.out = nn.Conv2d(4, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(self.pool(a))
        y = self.middle(self.pool(b))
        y = self.dec2(torch.cat([b, self.up(y)], 1))
        return self.out(self.dec1(torch.cat([a, self.up(y)], 1)))


class OptionA(nn.Module):
    """A residual block whose shortcut is a slice of the block's input."""

    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, stride, 1)
        self.conv2, self.stride = nn.Conv2d(width, width, 3, padding=1), stride

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv2(F.relu(self.conv1(x))) + x[:, :, :: self.stride, :: self.stride])


def option_a() -> nn.Module:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), OptionA(4, 1), OptionA(4, 2), OptionA(4, 2), head)


PATTERNS = {
    "resnet": (ResNet, ["layer2.0", "layer3.0", "layer4.0", "avgpool"], []),  # the paper's three and one
    "resnext": (lambda: ResNet(groups=2), ["layer2.0", "layer3.0", "layer4.0", "avgpool"], []),
    "deep stem": (lambda: ResNet(deep=True), ["layer2.0", "layer3.0", "layer4.0", "avgpool"], []),
    "vgg": (VGG, ["features.4", "features.9", "features.14"], []),
    "densenet": (DenseNet, ["features.transition1.pool", "features.transition2.pool"], ["features"]),
    "convnext": (ConvNeXt, ["features.2.1", "features.4.1", "avgpool"], []),
    "mobilenet": (MobileNet, ["features.2.conv.1.0", "features.4.conv.1.0"], ["features"]),
    "functions": (Tutorial, [], ["conv2", "conv4"]),
    "unet": (UNet, ["pool"], []),
    "option A": (option_a, ["2", "3", "4.0"], []),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_places(pattern: str) -> None:
    make, before, after = PATTERNS[pattern]
    assert stages(make()) == (before, after)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_weights_stay_and_undoing_is_exact(pattern: str) -> None:
    model, x = PATTERNS[pattern][0]().eval(), torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(x)
        smooth = calibrant.smooth(model)
        assert not torch.equal(smooth(x), before) and torch.equal(model(x), before)
        assert smooth.state_dict().keys() == model.state_dict().keys()
        fresh = calibrant.smooth(PATTERNS[pattern][0]().eval())
        fresh.load_state_dict(smooth.state_dict())  # a checkpoint fits with and without smoothing
        torch.testing.assert_close(fresh(x), smooth(x))
        assert torch.equal(unsmooth(smooth)(x), before)
        assert all(not m._forward_pre_hooks and not m._forward_hooks for m in smooth.modules())


def test_a_functional_pool_reads_the_smoothed_map() -> None:
    """conv2 → ReLU → pool: Smooth after conv2 equals Smooth after its ReLU (SS Eq. 41)."""
    model, x = Tutorial().eval(), torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    layer = Smooth()
    with torch.no_grad():
        y = F.max_pool2d(layer(F.relu(model.conv2(F.relu(model.conv1(x))))), 2)
        y = F.max_pool2d(layer(F.relu(model.conv4(F.relu(model.conv3(y))))), 2)
        torch.testing.assert_close(calibrant.smooth(model)(x), model.fc(y.mean((2, 3))))


def test_a_sum_pooled_by_a_function_is_refused_with_the_reachable_places() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
            self.pool = nn.MaxPool2d(2)

        def forward(self, x: Tensor) -> Tensor:
            return F.max_pool2d(self.pool(self.b(self.a(x))) + self.c(self.pool(self.b(x))), 2)

    with pytest.raises(InputError, match=r"max_pool2d.*forward.*where=.*pool"):
        calibrant.smooth(Sum())


def test_several_arguments_and_networks_that_need_their_own_example() -> None:
    class Conditional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(cbr(3, 4), cbr(4, 4), nn.MaxPool2d(2), cbr(4, 4))
            self.scale = nn.Linear(2, 4)

        def forward(self, x: Tensor, condition: Tensor) -> Tensor:
            return (self.body(x) * self.scale(condition)[:, :, None, None]).mean((2, 3))

    x, condition = torch.randn(2, 3, 8, 8), torch.randn(2, 2)
    with pytest.raises(InputError, match="condition.*example="):
        calibrant.smooth(Conditional())
    for example in ((x, condition), {"x": x, "condition": condition}):
        with pytest.raises(InputError, match="where="):  # a function pools a product, which no module returns
            calibrant.smooth(Conditional(), example=example)
        assert list(smoothed(calibrant.smooth(Conditional(), where="body.2", example=example))) == ["before body.2"]


@pytest.mark.parametrize(("axes", "conv", "pool"), [(1, nn.Conv1d, nn.MaxPool1d), (3, nn.Conv3d, nn.AvgPool3d)])
def test_one_and_three_dimensions(axes: int, conv: type[nn.Module], pool: type[nn.Module]) -> None:
    model = nn.Sequential(conv(2, 3, 3, padding=1), conv(3, 3, 3, padding=1), pool(2), conv(3, 3, 3, padding=1))
    smooth = calibrant.smooth(model, example=torch.randn(1, 2, *[8] * axes))
    assert list(smoothed(smooth)) == ["before 2"] and smoothed(smooth)["before 2"].blur.axes == axes


def test_a_kernel_larger_than_a_map_is_named_with_its_place() -> None:
    with pytest.raises(InputError, match=r"layer4.0.*4×4.*5 taps.*where="):
        calibrant.smooth(ResNet(), kernel=(1, 4, 6, 4, 1), example=torch.randn(1, 3, 64, 64))


class Unused(nn.Sequential):
    """A network whose first module is never called."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 3, 1), nn.Conv2d(3, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self[1](x)


def test_names_from_smoothed_restore_the_same_places() -> None:
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    model = DenseNet().eval()
    smooth = calibrant.smooth(model)
    again = calibrant.smooth(model, where=list(smoothed(smooth)))
    assert list(smoothed(again)) == list(smoothed(smooth)) and "after features" in smoothed(again)
    with torch.no_grad():
        assert torch.equal(again(x), smooth(x))


def test_a_where_without_a_match_lists_the_modules() -> None:
    with pytest.raises(InputError, match=r"'layer9' matches no module.*maxpool, layer1.*avgpool"):
        calibrant.smooth(ResNet(), where=["layer2", "layer9"])
    with pytest.raises(InputError, match=r"'0' is never called.*modules that take a feature map: 1"):
        calibrant.smooth(Unused(), where="0")
    with pytest.raises(InputError, match="empty"):
        calibrant.smooth(ResNet(), where=[])
    with pytest.raises(InputError, match=r"before 'fc' there is shape \(2, 16\), not a feature map; modules that take"):
        calibrant.smooth(ResNet(), where="fc")


def test_a_name_given_twice_is_one_layer() -> None:
    model = ResNet().eval()
    once, twice = (calibrant.smooth(model, where=["layer2"] * n) for n in (1, 2))
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(twice(x), once(x)) and len(twice.layer2._forward_pre_hooks) == 1
