"""U-Net (Ronneberger 2015; SS A.2) with BatchNorm: a class for each pixel.

Logits are [N, H, W, K], classes last. There are six dropout layers, as in Bayesian SegNet: in the two deepest encoders,
the middle, and the three deepest decoders. `stage_end` is before each subsampling of the encoder, where SS puts its
smoothing. If a size is odd, the decoder's map is padded to the size of the encoder's.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.nn.blocks import Layers, conv, he

WIDTHS = (64, 128, 256, 512, 1024)


def double(inputs: int, outputs: int, layers: Layers, *, drop: bool) -> nn.Sequential:
    """Return two 3×3 convolutions, each with norm and activation, followed by dropout if `drop`."""
    return nn.Sequential(
        conv(inputs, outputs, 3), layers.norm(outputs), layers.act(),
        conv(outputs, outputs, 3), layers.norm(outputs), layers.act(),
        layers.drop() if drop else nn.Identity(),
    )  # fmt: skip


class UNet(nn.Module):
    """A U-Net with five stages. `width` is the number of channels of the first stage; each further stage doubles it."""

    class_axis = -1  # by default, four axes mean [N, K, H, W]

    def __init__(
        self, classes: int, in_channels: int, size: tuple[int, int], layers: Layers, *, width: int = WIDTHS[0]
    ) -> None:
        super().__init__()
        widths = tuple(w * width // WIDTHS[0] for w in WIDTHS)
        depth = len(widths) - 1
        edges = (in_channels, *widths)
        self.encoders = nn.ModuleList(double(edges[i], widths[i], layers, drop=i >= 2) for i in range(depth))
        self.ends = nn.ModuleList(layers.stage_end(w) for w in widths[:-1])
        self.pools = nn.ModuleList(layers.pool(kernel_size=2) for _ in range(depth))
        self.middle = double(widths[-2], widths[-1], layers, drop=True)
        self.ups = nn.ModuleList(nn.ConvTranspose2d(widths[i + 1], widths[i], 2, 2) for i in range(depth))
        self.decoders = nn.ModuleList(double(2 * widths[i], widths[i], layers, drop=i >= 1) for i in range(depth))
        self.fc = nn.Conv2d(widths[0], classes, 1)
        he(self)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for encoder, end, pool in zip(self.encoders, self.ends, self.pools, strict=True):
            x = encoder(x)
            skipped.append(x)
            x = pool(end(x))
        x = self.middle(x)
        for up, decoder, skip in zip(reversed(self.ups), reversed(self.decoders), reversed(skipped), strict=True):
            x = up(x)
            x = F.pad(x, (0, skip.shape[3] - x.shape[3], 0, skip.shape[2] - x.shape[2]))
            x = decoder(torch.cat([skip, x], 1))
        logits: Tensor = self.fc(x)
        return logits.permute(0, 2, 3, 1)
