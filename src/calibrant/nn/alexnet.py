"""AlexNet (Krizhevsky 2014), one tower, for 224 pixels. SS Eq. 34–36 divide corruption errors by its errors.

The last map of other sizes is pooled to 6 × 6 too. Images of less than 63 pixels would vanish, so for those (CIFAR) the
first convolution is 5 × 5 without a stride, and the last map is 3 × 3.
"""

from __future__ import annotations

from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.nn.blocks import Classifier, Layers

SMALL, LEAST = 63, 15


class AlexNet(Classifier):
    """Five convolutions and three dense layers, with dropout (`head_dropout`)."""

    def __init__(
        self, classes: int, in_channels: int, size: tuple[int, int], layers: Layers, *, head_dropout: float = 0.5
    ) -> None:
        super().__init__()
        if min(size) < LEAST:
            raise InputError(f"images of {size[0]}×{size[1]} vanish in AlexNet; it needs {LEAST}×{LEAST} at least")
        small = min(size) < SMALL
        stem = nn.Conv2d(in_channels, 64, 5, 1, 2) if small else nn.Conv2d(in_channels, 64, 11, 4, 2)
        edge = 3 if small else 6
        self.convolutions = nn.Sequential(
            stem, layers.act(), layers.pool(kernel_size=3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2), layers.act(), layers.pool(kernel_size=3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1), layers.act(),
            nn.Conv2d(384, 256, 3, padding=1), layers.act(),
            nn.Conv2d(256, 256, 3, padding=1), layers.act(), layers.pool(kernel_size=3, stride=2),
            nn.AdaptiveAvgPool2d(edge),
        )  # fmt: skip
        self.dense = nn.Sequential(
            nn.Dropout(head_dropout), nn.Linear(256 * edge**2, 4096), layers.act(),
            nn.Dropout(head_dropout), nn.Linear(4096, 4096), layers.act(),
        )  # fmt: skip
        self.fc = nn.Linear(4096, classes)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.dense(self.convolutions(x).flatten(1))
        return out
