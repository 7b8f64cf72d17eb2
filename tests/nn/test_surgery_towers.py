"""Networks of several towers: each has its own stem, which is skipped, its stages and its global pooling."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant
from calibrant.errors import InputError
from calibrant.nn.smoothing import Smooth
from calibrant.nn.surgery import smoothed

X = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def places(model: nn.Module, **options: object) -> list[str]:
    return list(smoothed(calibrant.smooth(model, **options)))


class Block(nn.Module):
    def __init__(self, width: int, stride: int) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(width, width, 3, stride, 1), nn.Conv2d(width, width, 3, 1, 1)
        self.shortcut = nn.Conv2d(width, width, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.b(F.relu(self.a(x))) + self.shortcut(x))


class Tower(nn.Module):
    """A ResNet with the stem for ImageNet, pooled by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, 4, 7, 2, 3), nn.MaxPool2d(3, 2, 1)
        self.one, self.two, self.three = Block(4, 1), Block(4, 2), Block(4, 2)

    def body(self, x: Tensor) -> Tensor:
        return self.three(self.two(self.one(self.pool(F.relu(self.conv(x))))))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).mean((2, 3))


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Tower(), Tower()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x.flip(-1))


class Siamese(nn.Module):
    """One tower for two views."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Tower()

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) - self.a(x.flip(-1))


def test_each_tower_is_smoothed_like_a_single_tower() -> None:
    one = ["before a.two", "before a.three", "after a.three"]
    assert places(Two()) == one + [place.replace("a.", "b.") for place in one]  # the second stem is skipped too
    assert places(Siamese()) == one


def test_the_pool_after_a_deep_stem_is_skipped_in_each_tower() -> None:
    model = Two()
    for tower in (model.a, model.b):
        tower.conv = nn.Sequential(
            nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3)
        )
    assert not [place for place in places(model) if place.endswith("pool")]


def test_two_towers_together_have_the_places_of_each_alone() -> None:
    model = Two().eval()
    alone = calibrant.smooth(model.a), calibrant.smooth(model.b)
    with torch.no_grad():
        torch.testing.assert_close(calibrant.smooth(model)(X), alone[0](X) + alone[1](X.flip(-1)))


class Ends(Tower):
    """The mean of a map by a module, and its maximum by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        return self.mean(x).flatten(1) + x.amax((2, 3))


def test_all_poolings_of_a_map_read_it_smoothed_once() -> None:
    model, layer = Ends().eval(), Smooth()
    smooth = calibrant.smooth(model)
    assert list(smoothed(smooth)) == ["before two", "before three", "after three"]
    with torch.no_grad():
        y = layer(model.three(layer(model.two(layer(model.one(model.pool(F.relu(model.conv(X)))))))))
        torch.testing.assert_close(smooth(X), y.mean((2, 3)) + y.amax((2, 3)))


class Auxiliary(Tower):
    """A second head on a map that is processed further, so the map is not the last."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.two(self.one(self.pool(F.relu(self.conv(x)))))
        return self.three(x).mean((2, 3)), x.mean((2, 3))


class Normalised(Tower):
    """A map divided by its norm over all points: the norm is a vector of channels but no pooling."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x).flatten(2)
        return (F.normalize(x, dim=-1) @ x.transpose(1, 2)).flatten(1)


def test_maps_that_are_not_the_last() -> None:
    assert places(Auxiliary()) == ["before two", "before three", "after three"]

    class Three(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Normalised(), Tower()

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x).mean(1) + self.b(x).mean(1)

    assert places(Three()) == ["before a.two", "before a.three", "before b.two", "before b.three", "after b.three"]


def test_parallel_pools_of_one_map_are_both_smoothed() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
            self.max, self.mean, self.out = nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Conv2d(8, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.out(torch.cat([self.max(x), self.mean(x)], 1))

    assert places(Mixed()) == ["before max", "before mean"]


def test_a_layer_with_unpooled_calls_is_refused_with_the_remedy() -> None:
    class Reused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(F.max_pool2d(self.b(self.a(x)), 2))

    with pytest.raises(
        InputError, match=r"the output of one of several calls of 'b'.*where='after b' smooths it at every"
    ):
        calibrant.smooth(Reused())
    assert places(Reused(), where="after b") == ["after b"]
