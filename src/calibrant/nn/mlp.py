"""The MLP of PEP §3.2: three hidden layers of 200, ReLU, BatchNorm after each; dropout after each for MC dropout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from calibrant.nn.blocks import Classifier, Layers


class MLP(Classifier):
    """An MLP for images of any shape, which it flattens."""

    def __init__(
        self,
        classes: int,
        in_channels: int,
        size: tuple[int, int],
        layers: Layers,
        *,
        hidden: Sequence[int] = (200, 200, 200),
        batch_norm: bool = True,
    ) -> None:
        super().__init__()
        width = in_channels * size[0] * size[1]
        self.body = nn.Sequential()
        for units in hidden:
            norm = nn.BatchNorm1d(units) if batch_norm else nn.Identity()
            self.body.append(nn.Sequential(nn.Linear(width, units), norm, layers.act(), layers.drop()))
            width = units
        self.fc = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x.flatten(1))
        return out
