"""VGG-16 and VGG-19 (Simonyan 2015) with BatchNorm. SS's VGG has the MLP head with 50 % dropout; `head="gap"` is a
variant. The head's hidden widths are VGG's own (4096, 4096): SS gives none.

A stage is the run of convolutions between two max-pools; MC dropout (`dropout=`) is one layer a stage, before its
pool. With `preact` the norm and activation stand before each convolution (SS C.2). Five pools: 32 pixels end in one,
224 in 7 × 7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.nn.blocks import Layers, conv
from calibrant.nn.heads import Head
from calibrant.nn.seeded import he

WIDTHS = (64, 128, 256, 512, 512)


class VGG(nn.Module):
    def __init__(
        self,
        depths: Sequence[int],
        classes: int,
        in_channels: int,
        size: tuple[int, int],
        layers: Layers,
        *,
        head: str,
        hidden: Sequence[int],
        head_dropout: float,
        preact: bool,
    ) -> None:
        super().__init__()
        height, width = size[0] // 32, size[1] // 32
        if height < 1 or width < 1:
            raise InputError(f"images of {size[0]}×{size[1]} vanish in VGG's five pools; it needs 32×32 at least")
        self.stages = nn.Sequential()
        inputs = in_channels
        for depth, outputs in zip(depths, WIDTHS, strict=True):
            stage = nn.Sequential()
            for _ in range(depth):
                convolution = conv(inputs, outputs, 3, bias=True)
                if preact:
                    raw = inputs == in_channels  # pixels are not activated
                    before = [] if raw else [layers.norm(inputs), layers.act()]
                    stage.append(nn.Sequential(*before, convolution))
                else:
                    stage.append(nn.Sequential(convolution, layers.norm(outputs), layers.act()))
                inputs = outputs
            stage.extend([layers.drop(), layers.stage_end(inputs), layers.pool(kernel_size=2, stride=2)])
            self.stages.append(stage)
        self.last = nn.Sequential(layers.norm(inputs), layers.act()) if preact else nn.Identity()
        self.head = Head(head, inputs, classes, size=(height, width), hidden=hidden, dropout=head_dropout)

    def features(self, x: Tensor) -> Tensor:
        return self.head.embed(self.last(self.stages(x)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head.fc(self.features(x))
        return out


def _vgg(
    depths: Sequence[int],
    classes: int,
    in_channels: int,
    size: tuple[int, int],
    layers: Layers,
    *,
    head: str = "mlp",
    hidden: Sequence[int] = (4096, 4096),
    head_dropout: float = 0.5,
    preact: bool = False,
) -> nn.Module:
    made = partial(VGG, head=head, hidden=hidden, head_dropout=head_dropout, preact=preact)
    return he(made(depths, classes, in_channels, size, layers))


vgg16 = partial(_vgg, (2, 2, 3, 3, 3))
vgg19 = partial(_vgg, (2, 2, 4, 4, 4))
