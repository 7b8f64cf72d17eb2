"""The heads that SS App. C compares, which turn a feature map [N, C, H, W] into logits.

gap: global average; max: global maximum; median: global median; mlp: flatten, then hidden layers with 50% dropout
(VGG's own classifier). `embed` returns the features before the last linear layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from calibrant.errors import unknown

HEADS = ("gap", "mlp", "max", "median")


class Headed(nn.Module):
    """An abstract network that ends in a `Head`."""

    head: Head

    def maps(self, x: Tensor) -> Tensor:
        """Return the last feature map."""
        raise TypeError(f"{type(self).__name__} must define maps")

    def features(self, x: Tensor) -> Tensor:
        return self.head.embed(self.maps(x))

    def forward(self, x: Tensor) -> Tensor:
        # through `features`, so that a layer inserted before the pooling affects both
        out: Tensor = self.head.fc(self.features(x))
        return out


class Head(nn.Module):
    """A head. Only the MLP needs `size`, the height and width of the feature map."""

    def __init__(
        self,
        kind: str,
        channels: int,
        classes: int,
        *,
        size: tuple[int, int] = (1, 1),
        hidden: Sequence[int] = (4096, 4096),
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        if kind not in HEADS:
            raise unknown("head", kind, HEADS)
        self.kind = kind
        self.mlp = nn.Sequential()
        width = channels
        if kind == "mlp":
            width = channels * size[0] * size[1]
            for units in hidden:
                self.mlp.extend([nn.Linear(width, units), nn.ReLU(), nn.Dropout(dropout)])
                width = units
        self.fc = nn.Linear(width, classes)

    def embed(self, x: Tensor) -> Tensor:
        if self.kind == "mlp":
            out: Tensor = self.mlp(x.flatten(1))
            return out
        if self.kind == "gap":
            return x.mean((2, 3))
        flat = x.flatten(2)
        return flat.amax(2) if self.kind == "max" else flat.median(2).values

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.embed(x))
        return out
