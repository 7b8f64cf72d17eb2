"""ResNets of He 2016a: ResNet-18, -50 and -101, ResNeXt-50, and the 6n+2 family for CIFAR, 20 … 110 layers.

The stem is for 32 pixels by default, `stem="imagenet"` for 224. Shortcuts are "A" (no parameters) or "conv" (1×1).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from calibrant.errors import unknown
from calibrant.nn.blocks import Basic, Bottleneck, Layers, conv, he
from calibrant.nn.heads import Head, Headed

STEMS = ("cifar", "imagenet")


class ResNet(Headed):
    """Stem, stages (each ends in `layers.stage_end`), head."""

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        depths: Sequence[int],
        widths: Sequence[int],
        classes: int,
        in_channels: int,
        size: tuple[int, int],
        layers: Layers,
        *,
        stem: str = "cifar",
        shortcut: str = "conv",
        head: str = "gap",
        hidden: Sequence[int] = (4096, 4096),
        groups: int = 1,
        group_width: int = 64,
    ) -> None:
        super().__init__()
        if stem not in STEMS:
            raise unknown("stem", stem, STEMS)
        first = widths[0]
        self.stages = len(depths)
        self.conv1 = conv(in_channels, first, 3) if stem == "cifar" else conv(in_channels, first, 7, 2)
        self.bn1, self.act1 = layers.norm(first), layers.act()
        self.maxpool = layers.pool(kernel_size=3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        inputs, height, width = first, *(_after_stem(edge, stem) for edge in size)
        for i, (depth, channels) in enumerate(zip(depths, widths, strict=True)):
            blocks: list[nn.Module] = []
            for j in range(depth):
                stride = 2 if i > 0 and j == 0 else 1
                blocks.append(block(inputs, channels, stride, layers, shortcut, groups, group_width))
                inputs = channels * block.expansion
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
            setattr(self, f"end{i + 1}", layers.stage_end(inputs))
            if i > 0:
                height, width = -(-height // 2), -(-width // 2)
        self.head = Head(head, inputs, classes, size=(height, width), hidden=hidden)
        he(self)

    def maps(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.act1(self.bn1(self.conv1(x))))
        for i in range(1, self.stages + 1):
            x = getattr(self, f"end{i}")(getattr(self, f"layer{i}")(x))
        return x


def _after_stem(edge: int, stem: str) -> int:
    return edge if stem == "cifar" else (edge + 3) // 4


WIDE = (64, 128, 256, 512)
NARROW = (16, 32, 64)

resnet18 = partial(ResNet, Basic, (2, 2, 2, 2), WIDE)
resnet50 = partial(ResNet, Bottleneck, (3, 4, 6, 3), WIDE)
resnet101 = partial(ResNet, Bottleneck, (3, 4, 23, 3), WIDE)
resnext50 = partial(ResNet, Bottleneck, (3, 4, 6, 3), WIDE, groups=32, group_width=4)
resnet20, resnet32, resnet44, resnet56, resnet110 = (
    partial(ResNet, Basic, (n, n, n), NARROW, shortcut="A") for n in (3, 5, 7, 9, 18)
)
