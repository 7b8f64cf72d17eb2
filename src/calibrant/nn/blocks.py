"""Residual blocks of He 2016a (activation after the sum), with their layers passed in as classes.

Dropout stands before the last convolution of each block, as in Zagoruyko 2016 (SS A.1 has one MC dropout layer per
block). Parameters have the names that published weights use (conv1, bn1, …, downsample.0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.errors import InputError, unknown

SHORTCUTS = ("conv", "A")


def _no_layer(channels: int) -> nn.Module:
    return nn.Identity()


@dataclass(frozen=True)
class Layers:
    """The layers of a network. `stage_end(channels)` is at the end of each stage, before the subsampling, where SS puts
    its smoothing."""

    norm: Callable[[int], nn.Module] = nn.BatchNorm2d
    act: Callable[[], nn.Module] = nn.ReLU
    pool: Callable[..., nn.Module] = nn.MaxPool2d
    stage_end: Callable[[int], nn.Module] = _no_layer
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("norm", "act", "pool", "stage_end"):
            if not callable(getattr(self, name)):
                raise InputError(f"{name}={getattr(self, name)!r} must be a layer's class; a recipe cannot write it")
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout <= 1:
            raise InputError(f"dropout is {self.dropout!r}; it must be a rate in [0, 1]")

    def drop(self) -> nn.Module:
        return nn.Dropout(self.dropout) if self.dropout else nn.Identity()


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1, bias: bool = False) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=bias)


def dense_layers(widths: Sequence[int], layers: Layers, batch_norm: bool) -> nn.Sequential:
    """Linear, BatchNorm, activation and dropout from each width to the next."""
    made = nn.Sequential()
    for inputs, outputs in pairwise(widths):
        norm = nn.BatchNorm1d(outputs) if batch_norm else nn.Identity()
        made.append(nn.Sequential(nn.Linear(inputs, outputs), norm, layers.act(), layers.drop()))
    return made


def he(model: nn.Module) -> None:
    """Initialise convolutions as He 2015 (normal, fan out, ReLU); other layers keep torch's initialisation."""
    for module in model.modules():
        if isinstance(module, (nn.Conv1d, nn.Conv2d)):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)


class Classifier(nn.Module):
    """An abstract network: `features(x)`, then the linear layer `fc`."""

    fc: nn.Module

    def features(self, x: Tensor) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define features")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.features(x))
        return out


class PadShortcut(nn.Module):
    """Shortcut of option A (He 2016a): every second pixel, with zeros in the new channels. It has no parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.before = stride, (outputs - inputs) // 2
        self.after = outputs - inputs - self.before

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


def shortcut(kind: str, inputs: int, outputs: int, stride: int, layers: Layers) -> nn.Module:
    if kind not in SHORTCUTS:
        raise unknown("shortcut", kind, SHORTCUTS)
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if kind == "A":
        return PadShortcut(inputs, outputs, stride)
    return nn.Sequential(conv(inputs, outputs, 1, stride), layers.norm(outputs))


class Basic(nn.Module):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(
        self, inputs: int, width: int, stride: int, layers: Layers, kind: str, groups: int = 1, group_width: int = 64
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, width, 3, stride), layers.norm(width)
        self.act1, self.drop = layers.act(), layers.drop()
        self.conv2, self.bn2 = conv(width, width, 3), layers.norm(width)
        self.downsample = shortcut(kind, inputs, width, stride, layers)
        self.act2 = layers.act()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(self.drop(y)))
        out: Tensor = self.act2(y + self.downsample(x))
        return out


class Bottleneck(nn.Module):
    """Convolutions 1×1, 3×3 (grouped in ResNeXt) and 1×1. The 3×3 has the stride, as in torchvision."""

    expansion = 4

    def __init__(
        self, inputs: int, width: int, stride: int, layers: Layers, kind: str, groups: int = 1, group_width: int = 64
    ) -> None:
        super().__init__()
        inner, outputs = width * group_width // 64 * groups, width * self.expansion
        self.conv1, self.bn1, self.act1 = conv(inputs, inner, 1), layers.norm(inner), layers.act()
        self.conv2, self.bn2 = conv(inner, inner, 3, stride, groups=groups), layers.norm(inner)
        self.act2, self.drop = layers.act(), layers.drop()
        self.conv3, self.bn3 = conv(inner, outputs, 1), layers.norm(outputs)
        self.downsample = shortcut(kind, inputs, outputs, stride, layers)
        self.act3 = layers.act()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(self.bn1(self.conv1(x)))
        y = self.act2(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(self.drop(y)))
        out: Tensor = self.act3(y + self.downsample(x))
        return out
