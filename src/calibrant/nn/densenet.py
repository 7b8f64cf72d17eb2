"""DenseNet-121 and -169 (Huang 2017): growth 32, bottlenecks of 4 × 32, compression ½; stem for 32 or for 224 pixels.

Optional dropout follows the last convolution of each dense layer, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from calibrant.errors import unknown
from calibrant.nn.blocks import Layers, conv, he
from calibrant.nn.heads import Head, Headed
from calibrant.nn.resnet import STEMS

GROWTH = 32


class Dense(nn.Module):
    """A dense layer: norm, act, 1×1 to 4·growth, norm, act, 3×3 to growth. Its output is appended to its input."""

    def __init__(self, inputs: int, layers: Layers) -> None:
        super().__init__()
        inner = 4 * GROWTH
        self.narrow = nn.Sequential(layers.norm(inputs), layers.act(), conv(inputs, inner, 1))
        self.grow = nn.Sequential(layers.norm(inner), layers.act(), conv(inner, GROWTH, 3), layers.drop())

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.grow(self.narrow(x))], 1)


class DenseNet(Headed):
    def __init__(
        self,
        depths: Sequence[int],
        classes: int,
        in_channels: int,
        size: tuple[int, int],
        layers: Layers,
        *,
        stem: str = "cifar",
        head: str = "gap",
        hidden: Sequence[int] = (4096, 4096),
    ) -> None:
        super().__init__()
        if stem not in STEMS:
            raise unknown("stem", stem, STEMS)
        channels = 2 * GROWTH
        self.body = nn.Sequential(conv(in_channels, channels, 3 if stem == "cifar" else 7, 1 if stem == "cifar" else 2))
        if stem == "imagenet":
            self.body.extend([layers.norm(channels), layers.act(), layers.pool(kernel_size=3, stride=2, padding=1)])
        height, width = (edge if stem == "cifar" else (edge + 3) // 4 for edge in size)
        for i, depth in enumerate(depths):
            for _ in range(depth):
                self.body.append(Dense(channels, layers))
                channels += GROWTH
            self.body.append(layers.stage_end(channels))
            if i < len(depths) - 1:
                halved = channels // 2
                self.body.extend([layers.norm(channels), layers.act(), conv(channels, halved, 1), nn.AvgPool2d(2)])
                channels, height, width = halved, height // 2, width // 2
        self.body.extend([layers.norm(channels), layers.act()])
        self.head = Head(head, channels, classes, size=(height, width), hidden=hidden)
        he(self)

    def maps(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


densenet121 = partial(DenseNet, (6, 12, 24, 16))
densenet169 = partial(DenseNet, (6, 12, 32, 32))
