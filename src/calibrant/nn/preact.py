"""Residual networks whose activation comes first (He 2016b): ResNet-29 v2 (AR), ResNet-18 and -50, Wide-ResNet-28-10.

resnet29v2 is the Keras example that AR A.1 trains (depth 9n+2, n = 3): bottlenecks 16/64/128 → 64/128/256, the stride
on the first 1×1, biases everywhere, a bare 1×1 shortcut on the *unactivated* input, and no activation before the very
first block, as the stem has one. The others take the shortcut after the activation (Zagoruyko 2016) and have no
biases. Dropout stands before the last convolution of a block, where Zagoruyko 2016 puts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from calibrant.nn.blocks import Layers, conv, he
from calibrant.nn.heads import Head


class PreBasic(nn.Module):
    """norm, act, 3×3, norm, act, dropout, 3×3; the shortcut reads the first activation where it has to change shape."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, layers: Layers, first: bool) -> None:
        super().__init__()
        self.bn1, self.act1, self.conv1 = layers.norm(inputs), layers.act(), conv(inputs, width, 3, stride)
        self.bn2, self.act2, self.drop = layers.norm(width), layers.act(), layers.drop()
        self.conv2 = conv(width, outputs, 3)
        self.reshapes = stride != 1 or inputs != outputs
        self.downsample = conv(inputs, outputs, 1, stride) if self.reshapes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        active = self.act1(self.bn1(x))
        y = self.conv1(active)
        y = self.conv2(self.drop(self.act2(self.bn2(y))))
        out: Tensor = y + self.downsample(active if self.reshapes else x)
        return out


class PreBottleneck(nn.Module):
    """norm, act, 1×1, norm, act, 3×3, norm, act, dropout, 1×1; the shortcut reads the input as it is."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, layers: Layers, first: bool) -> None:
        super().__init__()
        self.bn1 = nn.Identity() if first else layers.norm(inputs)
        self.act1 = nn.Identity() if first else layers.act()
        self.conv1 = conv(inputs, width, 1, stride, bias=True)
        self.bn2, self.act2, self.conv2 = layers.norm(width), layers.act(), conv(width, width, 3, bias=True)
        self.bn3, self.act3, self.drop = layers.norm(width), layers.act(), layers.drop()
        self.conv3 = conv(width, outputs, 1, bias=True)
        same = stride == 1 and inputs == outputs
        self.downsample = nn.Identity() if same else conv(inputs, outputs, 1, stride, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(self.act1(self.bn1(x)))
        y = self.conv2(self.act2(self.bn2(y)))
        y = self.conv3(self.drop(self.act3(self.bn3(y))))
        out: Tensor = y + self.downsample(x)
        return out


class PreWide(nn.Module):
    """ResNet-50's bottleneck with the activation first; the shortcut as in `PreBasic`, the stride on the 3×3."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, layers: Layers, first: bool) -> None:
        super().__init__()
        self.bn1, self.act1, self.conv1 = layers.norm(inputs), layers.act(), conv(inputs, width, 1)
        self.bn2, self.act2, self.conv2 = layers.norm(width), layers.act(), conv(width, width, 3, stride)
        self.bn3, self.act3, self.drop = layers.norm(width), layers.act(), layers.drop()
        self.conv3 = conv(width, outputs, 1)
        self.reshapes = stride != 1 or inputs != outputs
        self.downsample = conv(inputs, outputs, 1, stride) if self.reshapes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        active = self.act1(self.bn1(x))
        y = self.conv2(self.act2(self.bn2(self.conv1(active))))
        y = self.conv3(self.drop(self.act3(self.bn3(y))))
        out: Tensor = y + self.downsample(active if self.reshapes else x)
        return out


Block = type[PreBasic] | type[PreBottleneck] | type[PreWide]


class PreResNet(nn.Module):
    """stem → stages → norm, act → head. With `PreBottleneck` the stem ends in a norm and an activation of its own."""

    def __init__(
        self,
        block: Block,
        depths: Sequence[int],
        widths: Sequence[tuple[int, int]],
        stem: int,
        classes: int,
        in_channels: int,
        size: tuple[int, int],
        layers: Layers,
        *,
        head: str = "gap",
        hidden: Sequence[int] = (4096, 4096),
    ) -> None:
        super().__init__()
        stem_active = block is PreBottleneck
        self.conv1 = conv(in_channels, stem, 3, bias=stem_active)
        self.stem = nn.Sequential(layers.norm(stem), layers.act()) if stem_active else nn.Identity()
        self.stages = nn.Sequential()
        inputs, (height, width) = stem, size
        for i, (inner, outputs) in enumerate(widths):
            stage = nn.Sequential()
            for j in range(depths[i]):
                stride = 2 if i > 0 and j == 0 else 1
                stage.append(block(inputs, inner, outputs, stride, layers, stem_active and i == j == 0))
                inputs = outputs
            stage.append(layers.stage_end(inputs))
            self.stages.append(stage)
            if i > 0:
                height, width = -(-height // 2), -(-width // 2)
        self.bn, self.act = layers.norm(inputs), layers.act()
        self.head = Head(head, inputs, classes, size=(height, width), hidden=hidden)
        he(self)

    def features(self, x: Tensor) -> Tensor:
        return self.head.embed(self.act(self.bn(self.stages(self.stem(self.conv1(x))))))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head.fc(self.features(x))
        return out


resnet29v2 = partial(PreResNet, PreBottleneck, (3, 3, 3), ((16, 64), (64, 128), (128, 256)), 16)
preact_resnet18 = partial(PreResNet, PreBasic, (2, 2, 2, 2), ((64, 64), (128, 128), (256, 256), (512, 512)), 64)
preact_resnet50 = partial(PreResNet, PreWide, (3, 4, 6, 3), ((64, 256), (128, 512), (256, 1024), (512, 2048)), 64)
wide_resnet28_10 = partial(PreResNet, PreBasic, (4, 4, 4), ((160, 160), (320, 320), (640, 640)), 16)
