"""VGG-16 and VGG-19 (Simonyan 2015) with BatchNorm.

SS's VGG has the MLP head with 50% dropout; `head="gap"` is a variant. The head's hidden layers are VGG's own (4096,
4096), because SS mentions none. With `preact` the norm and activation are before each convolution (SS C.2). A stage is
the convolutions between two max-pools. After five pools, 32 pixels become one and 224 pixels 7 × 7.

SS A.1 puts "one MC dropout layer" into "each block". In the paper a block can be read as a stage
(`dropout_at="stages"`, before its pool). In the authors' later code a block is a convolution ("convolutions"), the MLP
gets the last map expanded to 7 × 7 (`head_edge=7`), and the other heads have no fifth pool (`last_pool=False`), so that
they have several points to average. SS's recipes follow the authors' code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from calibrant.errors import InputError, unknown
from calibrant.nn.blocks import Layers, conv, he
from calibrant.nn.heads import Head, Headed

WIDTHS = (64, 128, 256, 512, 512)
DROPOUT_AT = ("stages", "convolutions")


class Spread(nn.AdaptiveAvgPool2d):
    """Pool or expand the map to edge × edge points. A single point is repeated, five times as fast as by the pool."""

    def __init__(self, edge: int) -> None:
        super().__init__(edge)
        self.edge = edge

    def forward(self, z: Tensor) -> Tensor:
        return z.expand(-1, -1, self.edge, self.edge) if z.shape[-2:] == (1, 1) else super().forward(z)


class VGG(Headed):
    def __init__(
        self,
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
        dropout_at: str = "stages",
        last_pool: bool = True,
        head_edge: int | None = None,
    ) -> None:
        super().__init__()
        if head_edge is not None and head != "mlp":
            raise InputError(
                f"head_edge={head_edge} spreads the map for an MLP; head={head!r} pools it: drop head_edge"
            )
        if head_edge is not None and (type(head_edge) is not int or head_edge < 1):
            raise InputError(f"head_edge={head_edge!r} must be a whole number, 1 or more")
        if dropout_at not in DROPOUT_AT:
            raise unknown("dropout_at", dropout_at, DROPOUT_AT)
        shrunk = 32 if last_pool else 16
        height, width = size[0] // shrunk, size[1] // shrunk
        if height < 1 or width < 1:
            pools = "five" if last_pool else "four"
            raise InputError(
                f"images of {size[0]}×{size[1]} vanish in VGG's {pools} pools; it needs {shrunk}×{shrunk} at least"
            )
        within = layers.drop if dropout_at == "convolutions" else nn.Identity
        self.stages = nn.Sequential()
        inputs = in_channels
        for depth, outputs in zip(depths, WIDTHS, strict=True):
            stage = nn.Sequential()
            for _ in range(depth):
                convolution = conv(inputs, outputs, 3, bias=True)
                if preact:
                    raw = inputs == in_channels  # no activation before the first convolution, which reads pixels
                    before = [] if raw else [layers.norm(inputs), layers.act()]
                    stage.append(nn.Sequential(*before, convolution, within()))
                else:
                    stage.append(nn.Sequential(convolution, layers.norm(outputs), layers.act(), within()))
                inputs = outputs
            pool = layers.pool(kernel_size=2, stride=2) if last_pool or len(self.stages) < 4 else nn.Identity()
            stage.extend([layers.drop() if dropout_at == "stages" else nn.Identity(), layers.stage_end(inputs), pool])
            self.stages.append(stage)
        self.last = nn.Sequential(layers.norm(inputs), layers.act()) if preact else nn.Identity()
        self.spread = nn.Identity() if head_edge is None else Spread(head_edge)
        height, width = (height, width) if head_edge is None else (head_edge, head_edge)
        self.head = Head(head, inputs, classes, size=(height, width), hidden=hidden, dropout=head_dropout)
        he(self)

    def maps(self, x: Tensor) -> Tensor:
        out: Tensor = self.spread(self.last(self.stages(x)))
        return out


vgg16 = partial(VGG, (2, 2, 3, 3, 3))
vgg19 = partial(VGG, (2, 2, 4, 4, 4))
