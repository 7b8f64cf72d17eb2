"""Inception-v3 (Szegedy 2016), for 299 pixels (PEP §3.1), without the auxiliary classifier.

A mixed block concatenates the outputs of several branches. A branch is a list of (outputs, kernel, stride, padding).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.nn.blocks import Layers, he
from calibrant.nn.heads import Head, Headed

LEAST = 75
Edge = int | tuple[int, int]
Row = tuple[int, Edge, int, Edge]
ROW, COLUMN = (1, 7), (7, 1)
ROW_PAD, COLUMN_PAD = (0, 3), (3, 0)


class Mixed(nn.Module):
    """The concatenated outputs of branches of convolutions (each with norm and activation) and of a pooled branch."""

    def __init__(
        self, inputs: int, branches: Sequence[Sequence[Row]], layers: Layers, pool: nn.Module, pooled: int = 0
    ) -> None:
        super().__init__()
        self.branches = nn.ModuleList(chain(inputs, rows, layers) for rows in branches)
        after = chain(inputs, [(pooled, 1, 1, 0)], layers) if pooled else nn.Sequential()
        self.branches.append(nn.Sequential(pool, *after))
        self.outputs = sum(rows[-1][0] for rows in branches) + (pooled or inputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Fork(nn.Module):
    """A branch of the last blocks that splits into a 1×3 and a 3×1 convolution, whose outputs are concatenated."""

    def __init__(self, inputs: int, rows: Sequence[Row], layers: Layers) -> None:
        super().__init__()
        self.stem = chain(inputs, rows, layers)
        width = rows[-1][0]
        self.across = chain(width, [(384, (1, 3), 1, (0, 1))], layers)
        self.down = chain(width, [(384, (3, 1), 1, (1, 0))], layers)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return torch.cat([self.across(y), self.down(y)], 1)


class Wide(nn.Module):
    """A block of the last stage (InceptionE): a 1×1 convolution, a fork, a deeper fork and a pooled branch."""

    outputs = 2048

    def __init__(self, inputs: int, layers: Layers) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                chain(inputs, [(320, 1, 1, 0)], layers),
                Fork(inputs, [(384, 1, 1, 0)], layers),
                Fork(inputs, [(448, 1, 1, 0), (384, 3, 1, 1)], layers),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), *chain(inputs, [(192, 1, 1, 0)], layers)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def chain(inputs: int, rows: Sequence[Row], layers: Layers) -> nn.Sequential:
    out = nn.Sequential()
    for outputs, kernel, stride, padding in rows:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        norm = layers.norm(outputs)
        if isinstance(norm, nn.BatchNorm2d):
            norm.eps = 1e-3  # as published, and as all published weights were trained
        out.append(nn.Sequential(convolution, norm, layers.act()))
        inputs = outputs
    return out


class Inception(Headed):
    def __init__(
        self, classes: int, in_channels: int, size: tuple[int, int], layers: Layers, *, head: str = "gap"
    ) -> None:
        super().__init__()
        if min(size) < LEAST:
            raise InputError(f"images of {size[0]}×{size[1]} vanish in Inception-v3; it needs {LEAST}×{LEAST} at least")
        stem = chain(in_channels, [(32, 3, 2, 0), (32, 3, 1, 0), (64, 3, 1, 1)], layers)
        stem.append(layers.pool(kernel_size=3, stride=2))
        stem.extend(chain(64, [(80, 1, 1, 0), (192, 3, 1, 0)], layers))
        stem.append(layers.pool(kernel_size=3, stride=2))
        self.body, width = stem, 192

        def add(branches: Sequence[Sequence[Row]], *, pooled: int = 0) -> None:
            nonlocal width
            halve = not pooled
            pool = layers.pool(kernel_size=3, stride=2) if halve else nn.AvgPool2d(3, 1, 1)
            block = Mixed(width, branches, layers, pool, pooled)
            self.body.append(block)
            width = block.outputs

        for pooled in (32, 64, 64):
            five: list[Row] = [(48, 1, 1, 0), (64, 5, 1, 2)]
            add([[(64, 1, 1, 0)], five, [(64, 1, 1, 0), (96, 3, 1, 1), (96, 3, 1, 1)]], pooled=pooled)
        add([[(384, 3, 2, 0)], [(64, 1, 1, 0), (96, 3, 1, 1), (96, 3, 2, 0)]])
        for c in (128, 160, 160, 192):
            seven: list[Row] = [(c, 1, 1, 0), (c, ROW, 1, ROW_PAD), (192, COLUMN, 1, COLUMN_PAD)]
            back: list[Row] = [(c, 1, 1, 0), (c, COLUMN, 1, COLUMN_PAD), (c, ROW, 1, ROW_PAD)]
            add([[(192, 1, 1, 0)], seven, [*back, (c, COLUMN, 1, COLUMN_PAD), (192, ROW, 1, ROW_PAD)]], pooled=192)
        wide: list[Row] = [(192, 1, 1, 0), (192, ROW, 1, ROW_PAD), (192, COLUMN, 1, COLUMN_PAD), (192, 3, 2, 0)]
        add([[(192, 1, 1, 0), (320, 3, 2, 0)], wide])
        self.body.extend([Wide(width, layers), Wide(Wide.outputs, layers)])
        self.drop = nn.Dropout(0.5)
        self.head = Head(head, Wide.outputs, classes)
        he(self)

    def maps(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head.fc(self.drop(self.features(x)))
        return out
