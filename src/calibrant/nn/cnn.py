"""The small CNNs of PEP §3.2. Optional dropout follows every layer but the first and the last.

mnist_cnn: 3×3 convolutions with 32 and 64 kernels, dense layers of 128 and 64, BatchNorm after all four. The paper
mentions no pooling and no padding, so there is none by default (`window=2` and `padding=1` are settings).

cifar_cnn: two times (two 3×3 convolutions, max-pool 2×2) with 16 and 32 kernels, then a dense layer of 128; BatchNorm
after convolutions. The paper mentions no padding; we pad by 1, so that small images fit.

`norm_first=False` puts BatchNorm after the activation, another reading of "ReLU non-linearities, and BN after each
layer". The dense layer then gets inputs of mean zero. With BatchNorm first, and dropout 0.5 on every layer, Adam's
first steps push most of cifar_cnn's 128 dense units below zero for good (98% of them within 100 steps on CIFAR-100).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.nn.blocks import Classifier, Layers, dense_layers


class CNN(Classifier):
    """A CNN. `stages` groups the kernels of each convolution; a group ends in a max-pool of `window` (1: no pool)."""

    def __init__(
        self,
        classes: int,
        in_channels: int,
        size: tuple[int, int],
        layers: Layers,
        *,
        stages: Sequence[Sequence[int]],
        dense: Sequence[int],
        dense_norm: bool,
        window: int,
        padding: int,
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        self.convolutions = nn.Sequential()
        channels, (height, width) = in_channels, size
        first = True
        for stage in stages:
            for kernels in stage:
                drop = nn.Identity() if first else layers.drop()
                inner = (layers.norm(kernels), layers.act()) if norm_first else (layers.act(), layers.norm(kernels))
                self.convolutions.append(nn.Sequential(nn.Conv2d(channels, kernels, 3, padding=padding), *inner, drop))
                channels, first = kernels, False
                height, width = height + 2 * padding - 2, width + 2 * padding - 2
            self.convolutions.append(layers.stage_end(channels))
            if window > 1:
                self.convolutions.append(layers.pool(kernel_size=window))
                height, width = height // window, width // window
        if height < 1 or width < 1:
            raise InputError(f"images of {size[0]}×{size[1]} vanish in this CNN; use padding=1, window=1 or the mlp")
        widths = (channels * height * width, *dense)
        self.dense = dense_layers(widths, layers, dense_norm)
        self.fc = nn.Linear(widths[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense(self.convolutions(x).flatten(1))
        return out


def mnist_cnn(
    classes: int, in_channels: int, size: tuple[int, int], layers: Layers, *, window: int = 1, padding: int = 0
) -> nn.Module:
    made = partial(CNN, stages=((32, 64),), dense=(128, 64), dense_norm=True, window=window, padding=padding)
    return made(classes, in_channels, size, layers)


def cifar_cnn(
    classes: int,
    in_channels: int,
    size: tuple[int, int],
    layers: Layers,
    *,
    window: int = 2,
    padding: int = 1,
    norm_first: bool = True,
) -> nn.Module:
    made = partial(CNN, stages=((16, 16), (32, 32)), dense=(128,), dense_norm=False, window=window, padding=padding)
    return made(classes, in_channels, size, layers, norm_first=norm_first)
