"""Pre-activation residual networks (He 2016b): ResNet-29 v2 (AR), ResNet-18 and -50, Wide-ResNet-28-10.

resnet29v2 is the Keras example that AR A.1 trains (depth 9n+2, n = 3): bottlenecks 16/64/128 → 64/128/256, the stride
on the first 1×1, biases everywhere, a 1×1 shortcut without norm on the *unactivated* input, and no activation before
the first block, because the stem ends in one. The other networks take the shortcut after the activation (Zagoruyko
2016) and have no biases. Dropout stands before the last convolution of a block, as in Zagoruyko 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import ClassVar

from torch import Tensor, nn

from calibrant.nn.blocks import Layers, conv, he
from calibrant.nn.heads import Head, Headed


class PreBlock(nn.Module):
    """An abstract block: norm, act and convolution for each of `kernels`. A shortcut that changes the shape reads the
    first activation."""

    kernels: ClassVar[tuple[int, ...]]
    strided: ClassVar[int] = 1  # number of the convolution that subsamples
    keras: ClassVar[bool] = False  # with biases and a shortcut on the unactivated input

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, layers: Layers, first: bool) -> None:
        super().__init__()
        channels, last = inputs, len(self.kernels)
        for i, kernel in enumerate(self.kernels, 1):
            active = i == 1 and first  # after a stem that ends in a norm and an activation
            setattr(self, f"bn{i}", nn.Identity() if active else layers.norm(channels))
            setattr(self, f"act{i}", nn.Identity() if active else layers.act())
            if i == last:
                self.drop = layers.drop()
            made, channels = channels, outputs if i == last else width
            step = stride if i == self.strided else 1
            setattr(self, f"conv{i}", conv(made, channels, kernel, step, bias=self.keras))
        self.reshapes = stride != 1 or inputs != outputs
        self.downsample = conv(inputs, outputs, 1, stride, bias=self.keras) if self.reshapes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        last = len(self.kernels)
        y = active = self._active(1, x)
        for i in range(1, last):
            y = self._active(i + 1, getattr(self, f"conv{i}")(y))
        y = getattr(self, f"conv{last}")(self.drop(y))
        out: Tensor = y + self.downsample(active if self.reshapes and not self.keras else x)
        return out

    def _active(self, i: int, z: Tensor) -> Tensor:
        out: Tensor = getattr(self, f"act{i}")(getattr(self, f"bn{i}")(z))
        return out


class PreBasic(PreBlock):
    """Two 3×3 convolutions."""

    kernels = (3, 3)


class PreBottleneck(PreBlock):
    """Convolutions 1×1, 3×3 and 1×1, as in Keras's example."""

    kernels = (1, 3, 1)
    keras = True


class PreWide(PreBlock):
    """The pre-activation bottleneck of ResNet-50, with the stride on the 3×3."""

    kernels = (1, 3, 1)
    strided = 2


class PreResNet(Headed):
    """Stem, stages, norm, activation, head. With `PreBottleneck` the stem ends in a norm and an activation."""

    def __init__(
        self,
        block: type[PreBlock],
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

    def maps(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.bn(self.stages(self.stem(self.conv1(x)))))
        return out


resnet29v2 = partial(PreResNet, PreBottleneck, (3, 3, 3), ((16, 64), (64, 128), (128, 256)), 16)
preact_resnet18 = partial(PreResNet, PreBasic, (2, 2, 2, 2), ((64, 64), (128, 128), (256, 256), (512, 512)), 64)
preact_resnet50 = partial(PreResNet, PreWide, (3, 4, 6, 3), ((64, 256), (128, 512), (256, 1024), (512, 2048)), 64)
wide_resnet28_10 = partial(PreResNet, PreBasic, (4, 4, 4), ((160, 160), (320, 320), (640, 640)), 16)
