"""Every form of global pooling is found, and every form of residual block is smoothed once, as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant
from calibrant.errors import InputError
from calibrant.nn.smoothing import Smooth
from calibrant.nn.surgery import smoothed, unsmooth

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Ended(nn.Module):
    """Two stages and one of many forms of global pooling."""

    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 1, 1), nn.ReLU())
        self.b = nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.ReLU())
        self.pool, self.fc = pool, nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.pool(self.b(self.a(x))))


POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "at once": lambda z: z.mean((2, 3)),
    "axis by axis": lambda z: z.mean(-1).mean(-1),
    "axis by axis, kept": lambda z: z.mean(3, keepdim=True).mean(2, keepdim=True).flatten(1),
    "maximum, axis by axis": lambda z: z.amax(-1).amax(-1),
    "maximum with its places": lambda z: z.max(-1)[0].max(-1)[0],
    "sum, axis by axis": lambda z: z.sum(-1).sum(-1) / 256,
    "channels last": lambda z: z.permute(0, 2, 3, 1).mean((1, 2)),
    "channels last, copied": lambda z: z.permute(0, 2, 3, 1).contiguous().mean((1, 2)),
    "channels last, axis by axis": lambda z: z.permute(0, 2, 3, 1).mean(1).mean(1),
    "flat": lambda z: z.flatten(2).mean(-1),
    "tokens": lambda z: z.flatten(2).transpose(1, 2).mean(1),
    "the largest few": lambda z: z.flatten(2).topk(4)[0].mean(-1),
}


@pytest.mark.parametrize("how", POOLINGS)
def test_every_form_of_global_pooling_is_found(how: str) -> None:
    net = calibrant.smooth(Ended(POOLINGS[how]))
    assert list(smoothed(net)) == ["before b.0", "after b"]
    layer = Smooth()
    by_hand = net.fc(net.pool(layer(net.b[1](F.conv2d(layer(net.a(X)), net.b[0].weight, net.b[0].bias, 2, 1)))))
    torch.testing.assert_close(net(X), by_hand, rtol=0, atol=0)


def test_a_mean_over_channels_or_one_axis_is_not_global_pooling() -> None:
    for pool in (lambda z: z.mean(1).mean(-1)[:, :6], lambda z: z.mean(-1).flatten(1)[:, :6]):
        assert list(smoothed(calibrant.smooth(Ended(pool)))) == ["before b.0"]


class Hybrid(nn.Module):
    """Convolutions, then tokens that are reshaped to a map (CoAtNet, MaxViT)."""

    def __init__(self, patches: bool) -> None:
        super().__init__()
        front = nn.Conv2d(3, 4, 4, 4) if patches else nn.Conv2d(3, 4, 3, 1, 1)
        self.a = nn.Sequential(front) if patches else nn.Sequential(front, nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1))
        self.mix, self.pool = nn.Linear(4, 4), nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        z = self.a(x)
        tokens = self.mix(z.flatten(2).transpose(1, 2))
        return self.pool(tokens.transpose(1, 2).reshape(z.shape)).flatten(1)


def test_global_pooling_of_a_map_made_of_tokens_is_found() -> None:
    assert list(smoothed(calibrant.smooth(Hybrid(patches=False)))) == ["before pool"]
    with pytest.raises(InputError, match="no stage"):  # the patches of a transformer are not a map
        calibrant.smooth(Hybrid(patches=True))


class NormFree(nn.Module):
    """The residual block of normaliser-free networks (Brock 2021): both branches read the scaled activation."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.shortcut = nn.AvgPool2d(2), nn.Conv2d(4, 4, 1)
        self.conv1, self.conv2 = nn.Conv2d(4, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(x) * 1.7
        return self.shortcut(self.pool(x)) + 0.2 * self.conv2(F.silu(self.conv1(x)))


class Dual(nn.Module):
    """A dual-path block (Chen 2017), which takes two maps and returns two."""

    def __init__(self) -> None:
        super().__init__()
        self.shortcut, self.conv1, self.conv2 = nn.Conv2d(4, 4, 1, 2), nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, 2, 1)

    def forward(self, maps: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        x = torch.cat(maps, 1)
        short, out = self.shortcut(x), self.conv2(F.relu(self.conv1(x)))
        return short[:, :2] + out[:, :2], short[:, 2:] * out[:, 2:]


class Paths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.block = nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 1, 1), Dual()
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(F.relu(self.a(x)))
        return self.fc(self.pool(torch.cat(self.block((x[:, :2], x[:, 2:])), 1)).flatten(1))


def test_a_block_with_a_scaled_activation_is_smoothed_as_a_whole() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, 1, 1), nn.Conv2d(4, 4, 3, 1, 1), NormFree(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    assert list(smoothed(calibrant.smooth(net))) == ["before 2", "before 3"]


def test_a_block_of_several_maps_reads_each_smoothed() -> None:
    torch.manual_seed(0)
    net = Paths()
    before, smooth = net(X), calibrant.smooth(net)
    assert list(smoothed(smooth)) == ["before block", "before pool"]
    layer = Smooth()
    joined = torch.cat(net.block(tuple(layer(net.b(F.relu(net.a(X)))).split(2, 1))), 1)  # Blur and Prob are channelwise
    torch.testing.assert_close(smooth(X), net.fc(layer(joined).mean((2, 3))), rtol=0, atol=1e-6)
    again = calibrant.smooth(net, list(smoothed(smooth)))
    assert torch.equal(again(X), smooth(X)) and torch.equal(unsmooth(smooth)(X), before)


class Gated(nn.Module):
    """A module that takes a map and a vector."""

    def forward(self, given: tuple[Tensor, Tensor]) -> Tensor:
        return given[0] * given[1][:, :, None, None]


class WithGate(Ended):
    def __init__(self) -> None:
        super().__init__(lambda z: z.mean((2, 3)))
        self.gate = Gated()

    def forward(self, x: Tensor) -> Tensor:
        z = self.a(x)
        return self.fc(self.pool(self.b(self.gate((z, z.mean((2, 3)))))))


def test_an_input_that_is_not_a_map_is_named() -> None:
    with pytest.raises(InputError, match=r"before 'gate' there is shape \(\d+, 4\), not a feature map; .*'after gate'"):
        calibrant.smooth(WithGate(), where="gate")


class Siamese(nn.Module):
    """Two views in a tuple, which pass through the same two stages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.encoder = nn.Conv2d(3, 4, 3, 1, 1), Encoder()
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.encoder((self.stem(x), self.stem(x.flip(-1))))
        return self.fc(self.pool(a - b).flatten(1))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1))
        self.two = nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, 1))

    def forward(self, views: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        return tuple(self.two(self.one(view)) for view in views)


def test_views_with_separate_stages_are_smoothed_before_each() -> None:
    assert list(smoothed(calibrant.smooth(Siamese()))) == [
        "before encoder.one.2",
        "before encoder.two.2",
        "before pool",
    ]
