"""The MLP of PEP §3.2: three hidden layers of 200, ReLU, BatchNorm after each; dropout after each for MC dropout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from calibrant.nn.blocks import Classifier, Layers, dense_layers


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
        widths = (in_channels * size[0] * size[1], *hidden)
        self.body = dense_layers(widths, layers, batch_norm)
        self.fc = nn.Linear(widths[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x.flatten(1))
        return out
