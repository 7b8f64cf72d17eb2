"""Networks written in the ways of the known libraries and of tutorials, with the places of their smoothing layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.nn import build


class Net(nn.Module):
    """Layers, and a forward pass that is a function of them and of the inputs."""

    def __init__(self, forward: Callable[..., Any], **layers: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1)


def line(stride: int = 1) -> nn.Conv1d:
    return nn.Conv1d(4, 4, 3, stride, 1)


def stem() -> nn.Sequential:
    return nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4), nn.ReLU())


def block(stride: int = 2, shortcut: nn.Module | None = None) -> Net:
    return Net(
        lambda m, x: F.relu(m.b(F.relu(m.a(x))) + m.shortcut(x)),
        a=conv(4, 4, stride), b=conv(4, 4), shortcut=shortcut or nn.Conv2d(4, 4, 1, stride),
    )  # fmt: skip


def tower(head: Callable[[Any, Tensor], Any] = lambda m, z: z.mean((2, 3)), **layers: nn.Module) -> Net:
    """A ResNet with the stem for ImageNet and a head that is a function."""
    return Net(
        lambda m, x: head(m, m.three(m.two(m.one(m.pool(F.relu(m.conv(x))))))),
        conv=nn.Conv2d(3, 4, 7, 2, 3), pool=nn.MaxPool2d(3, 2, 1), one=block(1), two=block(), three=block(), **layers,
    )  # fmt: skip


def deep_tower() -> Net:
    made = tower()
    made.conv = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), conv(4, 4), nn.ReLU(), conv(4, 4))
    return made


def densenet() -> nn.Module:
    """Transitions end in AvgPool2d. The last ReLU, in place, and the global pooling are functions."""

    def dense(inputs: int) -> Net:
        return Net(lambda m, x: torch.cat([x, m.conv(F.relu(m.norm(x)))], 1), norm=nn.BatchNorm2d(inputs),
            conv=conv(inputs, 4))  # fmt: skip

    def transition() -> nn.Sequential:
        return nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1), nn.AvgPool2d(2))

    features = nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3), nn.MaxPool2d(3, 2, 1), dense(4), transition(), dense(4))
    features.append(nn.BatchNorm2d(8))
    return Net(
        lambda m, x: m.fc(F.adaptive_avg_pool2d(F.relu(m.features(x), inplace=True), 1).flatten(1)),
        features=features, fc=nn.Linear(8, 5),
    )  # fmt: skip


def convnext() -> nn.Module:
    """A patchify stem, blocks that compute with channels last, and LayerNorm with 2×2/2 between the stages."""

    def norm(width: int) -> Net:
        return Net(lambda m, x: m.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), norm=nn.LayerNorm(width))

    def stage(width: int) -> Net:
        mix = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 8), nn.GELU(), nn.Linear(8, width))
        return Net(
            lambda m, x: m.mix(m.deep(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2) * 0.5 + x,
            deep=nn.Conv2d(width, width, 7, padding=3, groups=width), mix=mix,
        )  # fmt: skip

    layers: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, 4, 4, 4), norm(4)), stage(4)]
    for inputs, outputs in ((4, 6), (6, 8)):
        layers += [nn.Sequential(norm(inputs), nn.Conv2d(inputs, outputs, 2, 2)), stage(outputs)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), norm(8), nn.Flatten(), nn.Linear(8, 5))


def mobilenet() -> nn.Module:
    """Strided depth-wise convolutions inside a block, squeeze and excite, and functional global pooling."""

    def squeeze(stride: int) -> Net:
        pool = nn.AdaptiveAvgPool2d(1) if stride == 1 else Function(lambda x: F.avg_pool2d(x, x.shape[2:]))
        return Net(lambda m, x: x * m.fc(m.pool(x)).sigmoid(), pool=pool, fc=nn.Conv2d(8, 8, 1))

    def inverted(stride: int) -> nn.Sequential:
        deep = nn.Conv2d(8, 8, 3, stride, 1, groups=8)
        return nn.Sequential(nn.Conv2d(4, 8, 1), nn.ReLU(), deep, nn.ReLU(), squeeze(stride), nn.Conv2d(8, 4, 1))

    features = nn.Sequential(conv(3, 4, 2), inverted(1), inverted(2), inverted(2))
    return Net(lambda m, x: F.adaptive_avg_pool2d(m.features(x), 1).flatten(1), features=features)


def tutorial() -> nn.Module:
    """All layers without weights are functions, and convolutions are not padded."""
    return Net(
        lambda m, x: m.fc(F.max_pool2d(F.relu(m.d(F.relu(m.c(
            F.max_pool2d(F.relu(m.b(F.relu(m.a(x)))), 2))))), 2).mean((2, 3))),
        a=nn.Conv2d(3, 4, 3), b=nn.Conv2d(4, 4, 3), c=nn.Conv2d(4, 4, 3), d=nn.Conv2d(4, 4, 3), fc=nn.Linear(4, 5),
    )  # fmt: skip


def reused_pool() -> nn.Module:
    """A U-Net with one pool for every level."""

    def forward(m: Any, x: Tensor) -> Tensor:
        a = m.down1(x)
        b = m.down2(m.pool(a))
        y = m.dec2(torch.cat([b, m.up(m.middle(m.pool(b)))], 1))
        out: Tensor = m.dec1(torch.cat([a, m.up(y)], 1))
        return out

    return Net(
        forward, down1=stem(), down2=nn.Sequential(conv(4, 4), nn.ReLU()), pool=nn.MaxPool2d(2), middle=conv(4, 4),
        up=nn.Upsample(scale_factor=2), dec2=conv(8, 4), dec1=conv(8, 4),
    )  # fmt: skip


class Same(nn.Conv2d):
    """TensorFlow's padding inside the layer: the convolution reads another tensor than the module took."""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (0, 1, 0, 1)), self.weight, self.bias, self.stride)


class OwnConvolution(nn.Module):
    """A convolution that is not one of torch's classes, as with equalised learning rates."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.weight, self.stride = nn.Parameter(torch.randn(outputs, inputs, 3, 3)), stride

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight / 9, stride=self.stride, padding=1)


def fork(m: Any, x: Tensor) -> Tensor:
    """A strided convolution and a functional pool read one map."""
    x = F.relu(m.b(F.relu(m.a(x))))
    out: Tensor = F.relu(m.d(torch.cat([m.c(x), F.max_pool2d(x, 2)], 1))).mean((2, 3))
    return out


def norm_free() -> Net:
    """The residual block of normaliser-free networks (Brock 2021): both branches read the scaled activation."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.silu(x) * 1.7
        out: Tensor = m.shortcut(m.pool(x)) + 0.2 * m.b(F.silu(m.a(x)))
        return out

    return Net(forward, pool=nn.AvgPool2d(2), shortcut=nn.Conv2d(4, 4, 1), a=conv(4, 4), b=conv(4, 4, 2))


def dual() -> Net:
    """A dual-path block (Chen 2017), which takes two maps and returns two."""

    def forward(m: Any, maps: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x = torch.cat(maps, 1)
        short, out = m.shortcut(x), m.b(F.relu(m.a(x)))
        return short[:, :2] + out[:, :2], short[:, 2:] * out[:, 2:]

    return Net(forward, shortcut=nn.Conv2d(4, 4, 1, 2), a=conv(4, 4), b=conv(4, 4, 2))


def expanded(between: list[nn.Module]) -> nn.Module:
    """VGG on 32 × 32 images: the last pool leaves one point, which an adaptive pool repeats 49 times."""
    features = nn.Sequential(conv(3, 4), nn.ReLU())
    for _ in range(5):
        features.extend([conv(4, 4), nn.ReLU(), nn.MaxPool2d(2)])
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(7), *between, nn.Flatten(), nn.Linear(196, 5))


def recurrent() -> nn.Module:
    """A 2-d trunk that is averaged over rows, and a 1-d head (CRNN)."""
    return Net(
        lambda m, x: F.relu(m.c2(F.relu(m.c1(F.relu(m.c0(m.p(m.stem(x)).mean(2))))))).mean(2),
        stem=stem(), p=nn.MaxPool2d(2), c0=line(), c1=line(2), c2=line(2),
    )  # fmt: skip


def gated() -> nn.Module:
    """A gate by a 1-d convolution over channels (ECA), registered before all other layers."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = m.one(m.stem(x))
        out: Tensor = m.two(x * m.gate(x.mean((2, 3))[:, None]).sigmoid()[:, 0, :, None, None]).mean((2, 3))
        return out

    return Net(forward, gate=nn.Conv1d(1, 1, 3, padding=1), stem=stem(), one=block(), two=block())


def waveform() -> nn.Module:
    """A learned 1-d front end, whose output is the image of a 2-d network."""
    body = nn.Sequential(conv(1, 4), nn.ReLU(), conv(4, 4))
    return Net(
        lambda m, x: m.two(m.one(m.stem(m.front(x)[:, None]))).mean((2, 3)),
        front=nn.Conv1d(1, 32, 16, 8, 4), stem=body, one=block(), two=block(),
    )  # fmt: skip


def video() -> nn.Module:
    """Frames in the batch axis, each pooled to a vector, then a 1-d convolution over time: two last maps."""

    def forward(m: Any, x: Tensor) -> Tensor:
        frames = m.one(m.stem(x.flatten(0, 1))).mean((2, 3))
        out: Tensor = m.time(frames.view(*x.shape[:2], -1).transpose(1, 2)).mean(2)
        return out

    return Net(forward, stem=stem(), one=block(), time=nn.Sequential(line(2), nn.ReLU()))


def embedded() -> nn.Module:
    """A position embedding that is resized."""

    def forward(m: Any, x: Tensor) -> Tensor:
        x = F.relu(m.c(m.pool(m.stem(x))))
        places = F.interpolate(m.places.weight.T.reshape(1, 4, 9, 9), size=x.shape[2:], mode="bicubic")
        return x.flatten(2).mean(2) + places.flatten(2).mean(2)

    return Net(forward, stem=stem(), pool=nn.MaxPool2d(2), c=conv(4, 4), places=nn.Embedding(81, 4))


def normalised(m: Any, z: Tensor) -> Tensor:
    """A map divided by its norm over all points: the norm is a vector of channels but no pooling."""
    z = z.flatten(2)
    return (F.normalize(z, dim=-1) @ z.transpose(1, 2)).flatten(1)


def power_mean(x: Tensor) -> Tensor:
    """The generalised mean over all points (GeM; Radenović 2018)."""
    return F.avg_pool2d(x.clamp(min=1e-6).pow(3), x.shape[2:]).pow(1 / 3)


def tokens(m: Any, x: Tensor) -> Tensor:
    """Convolutions, then tokens that are reshaped to a map (CoAtNet, MaxViT)."""
    z = m.a(x)
    mixed = m.mix(z.flatten(2).transpose(1, 2))
    out: Tensor = m.pool(mixed.transpose(1, 2).reshape(z.shape)).flatten(1)
    return out


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    places: tuple[str, ...]  # "before 1d.NAME" blurs over one axis
    shape: tuple[int, ...] = (2, 3, 64, 64)
    given: bool = False  # whether `smooth` needs this shape as example=


GAP = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
STAGES = ("before layer2.0", "before layer3.0")
TOWER = ("before two", "before three", "after three")
A_B = tuple(f"{side} {name}.{rest}" for name in "ab" for side, rest in zip(("before", "before", "after"),
    ("two", "three", "three"), strict=True))  # fmt: skip
IMAGE = (2, 3, 32, 32)

CASES: dict[str, Case] = {
    # our own
    "resnet18": Case(lambda: build("resnet18", classes=5), (*STAGES, "before layer4.0", "after layer4"), IMAGE),
    "resnet50, ImageNet": Case(
        lambda: build("resnet50", classes=5, stem="imagenet"), (*STAGES, "before layer4.0", "after layer4")
    ),
    "resnet20, option A": Case(lambda: build("resnet20", classes=5), (*STAGES, "after layer3"), IMAGE),
    "resnet29v2": Case(
        lambda: build("resnet29v2", classes=5), ("before stages.1.0", "before stages.2.0", "after act"), IMAGE
    ),
    "preact_resnet18": Case(
        lambda: build("preact_resnet18", classes=5), (*(f"before stages.{i}.0" for i in (1, 2, 3)), "after act"), IMAGE
    ),
    "vgg16": Case(
        lambda: build("vgg16", classes=5, hidden=(4,)),
        tuple(f"before stages.{i}.{pool}" for i, pool in enumerate((4, 4, 5, 5, 5))), IMAGE,
    ),
    "densenet121": Case(
        lambda: build("densenet121", classes=5), (*(f"before body.{i}" for i in (11, 28, 57)), "after body"), IMAGE
    ),
    "unet": Case(
        lambda: build("unet", classes=5, width=4), tuple(f"before pools.{i}" for i in range(4)), IMAGE
    ),  # its skips keep their maps
    # the libraries' ways
    "densenet": Case(densenet, ("before features.3.3", "after features")),
    "convnext": Case(convnext, ("before 2.1", "before 4.1", "before 6")),
    "mobilenet": Case(mobilenet, ("before features.2.2", "before features.3.2", "after features")),
    "functions": Case(tutorial, ("after b", "after d")),
    "one pool for all levels": Case(reused_pool, ("before pool",)),
    "padding inside a layer": Case(
        lambda: nn.Sequential(*stem(), Same(4, 4, 3, 2), nn.ReLU(), conv(4, 4)), ("before 4",)
    ),
    "own convolutions": Case(
        lambda: nn.Sequential(OwnConvolution(3, 4), OwnConvolution(4, 4), OwnConvolution(4, 4, 2), *GAP),
        ("before 2", "before 3"), given=True,
    ),
    "a map with two readers": Case(
        lambda: Net(fork, a=conv(3, 4), b=conv(4, 4), c=conv(4, 4, 2), d=conv(8, 4)), ("after b", "after d")
    ),
    "pooled shortcuts": Case(
        lambda: nn.Sequential(
            nn.Sequential(conv(3, 4, 2), nn.ReLU(), nn.MaxPool2d(2), conv(4, 4)),
            *(block(2, nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(4, 4, 1))) for _ in range(3)), *GAP,
        ),
        ("before 1", "before 2", "before 3", "before 4"),
    ),  # as in timm's resnet10t, where 32 pixels end in one point
    "a block of two maps": Case(
        lambda: Net(lambda m, x: m.pool(torch.cat(m.block(m.stem(x).chunk(2, 1)), 1)), stem=stem(), block=dual(),
            pool=nn.AdaptiveAvgPool2d(1)), ("before block.shortcut", "before block.b", "before pool"),
    ),
    "a scaled activation": Case(
        lambda: nn.Sequential(conv(3, 4), conv(4, 4), norm_free(), *GAP), ("before 2", "before 3")
    ),
    "one point, repeated": Case(
        lambda: expanded([]), tuple(f"before 0.{i}" for i in (4, 7, 10, 13, 16)), IMAGE, given=True
    ),
    "one point, repeated later": Case(
        lambda: expanded([nn.Dropout2d(0.1)]), tuple(f"before 0.{i}" for i in (4, 7, 10, 13, 16)), IMAGE, given=True
    ),
    "a stem alone": Case(lambda: nn.Sequential(conv(3, 4), nn.ReLU(), nn.MaxPool2d(2)), ("before 2",)),
    "a stem and a pool": Case(
        lambda: nn.Sequential(conv(3, 4), nn.ReLU(), nn.MaxPool2d(2), conv(4, 4), nn.ReLU(), nn.MaxPool2d(2)),
        ("before 5",),
    ),
    "instance norm": Case(
        lambda: nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4), nn.InstanceNorm2d(4), nn.ReLU(), *GAP), ("before 5",)
    ),
    "group norm": Case(
        lambda: nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4), nn.GroupNorm(4, 4), nn.ReLU(), *GAP), ("before 5",)
    ),
    "tokens": Case(
        lambda: Net(tokens, a=nn.Sequential(conv(3, 4), nn.ReLU(), conv(4, 4, 2)), mix=nn.Linear(4, 4),
            pool=nn.AdaptiveAvgPool2d(1)), ("before pool",),
    ),
    "two poolings that are added": Case(
        lambda: Net(lambda m, x: m.head(F.adaptive_avg_pool2d(z := m.body(x), 1) + F.adaptive_max_pool2d(z, 1)),
            body=stem(), head=nn.Conv2d(4, 5, 1)), ("after body",),
    ),
    "a resized position embedding": Case(embedded, ("before pool", "after c")),
    "GeM": Case(lambda: nn.Sequential(*stem(), Function(power_mean), nn.Flatten()), ("before 4",)),
    "LPPool1d": Case(
        lambda: nn.Sequential(line(), nn.ReLU(), line(), nn.LPPool1d(2, 2), line()), ("before 1d.3",), (2, 4, 64), True
    ),
    "functional LPPool": Case(
        lambda: Net(lambda m, x: m.c(F.lp_pool2d(m.body(x), 2, 2)), body=stem(), c=conv(4, 4)), ("after body",)
    ),
    # towers
    "two towers": Case(lambda: Net(lambda m, x: m.a(x) + m.b(x.flip(-1)), a=tower(), b=tower()), A_B),
    "two deep stems": Case(lambda: Net(lambda m, x: m.a(x) + m.b(x.flip(-1)), a=deep_tower(), b=deep_tower()), A_B),
    "siamese": Case(lambda: Net(lambda m, x: m.a(x) - m.a(x.flip(-1)), a=tower()), A_B[:3]),
    "mean and maximum": Case(
        lambda: tower(lambda m, z: m.mean(z).flatten(1) + z.amax((2, 3)), mean=nn.AdaptiveAvgPool2d(1)), TOWER
    ),
    "an auxiliary head": Case(
        lambda: Net(lambda m, x: m.three(z := m.two(m.stem(x))).mean((2, 3)) + z.mean((2, 3)), stem=stem(), two=block(),
            three=block()), TOWER,
    ),
    "a normalised map": Case(
        lambda: Net(lambda m, x: m.a(x).mean(1) + m.b(x).mean(1), a=tower(normalised), b=tower()),
        (*A_B[:2], *A_B[3:]),
    ),
    "parallel pools": Case(
        lambda: Net(lambda m, x: m.out(torch.cat([m.max(z := m.stem(x)), m.mean(z)], 1)), stem=stem(),
            max=nn.MaxPool2d(2), mean=nn.AvgPool2d(2), out=conv(8, 4)), ("before max", "before mean"),
    ),
    # other numbers of axes
    "recurrent": Case(recurrent, ("before p", "before 1d.c1", "before 1d.c2", "after 1d.c2"), IMAGE),
    "a gate over channels": Case(gated, ("before one", "before two", "after two")),
    "waveform": Case(waveform, ("before one", "before two", "after two"), (2, 1, 256), given=True),
    "video": Case(
        video, ("before one", "after one", "before 1d.time.0", "after 1d.time"), (2, 8, 3, 32, 32), given=True
    ),
    "1-d pools": Case(
        lambda: nn.Sequential(line(), line(), nn.MaxPool1d(2), line(), nn.AvgPool1d(2), nn.ReLU(), line(2),
            nn.AdaptiveAvgPool1d(1)), ("before 1d.2", "before 1d.4", "before 1d.7"), (2, 4, 64),
    ),
    "3-d": Case(
        lambda: nn.Sequential(nn.Conv3d(2, 3, 3), nn.Conv3d(3, 3, 3), nn.AvgPool3d(2), nn.Conv3d(3, 3, 3)),
        ("before 3d.2",), (2, 2, 16, 16, 16),
    ),
}  # fmt: skip
