"""Unusual code around layers: arguments by keyword, counters in buffers, hooks, converted norms."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant
from calibrant.errors import InputError
from calibrant.nn.activations import relu6
from calibrant.nn.smoothing import Smooth
from calibrant.nn.surgery import smoothed, unsmooth

# Dynamo instantiates an autograd.Function, of which torch warns
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


class Keyword(nn.Module):
    """A network that calls every module by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
        self.p, self.c = nn.MaxPool2d(2), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.c(input=self.p(input=self.body(input=x)))


@pytest.mark.parametrize("where", ["before-downsampling", "p"])
def test_a_module_that_is_called_by_keyword(where: str) -> None:
    model = Keyword().eval()
    smooth = calibrant.smooth(model, where)
    assert list(smoothed(smooth)) == ["before p"]
    expected = model.c(model.p(Smooth()(model.body(X))))
    for way in (smooth, torch.export.export(smooth, (X,)).module(), copy.deepcopy(smooth)):
        torch.testing.assert_close(way(X), expected)
    torch.testing.assert_close(torch.compile(smooth, backend="eager", fullgraph=True)(X), expected)
    torch._dynamo.reset()
    assert torch.equal(unsmooth(smooth)(X), model(X))
    assert not smooth.p._forward_pre_hooks and not smooth.p._forward_pre_hooks_with_kwargs


class Second(nn.Module):
    """A module that takes its map as the second argument."""

    def forward(self, scale: float, x: Tensor) -> Tensor:
        return scale * x


class Scaled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return self[1](scale=2.0, x=self[0](x))


def test_a_refused_side_names_the_other_side() -> None:
    with pytest.raises(InputError, match=r"before '1' there is no tensor.*where='after 1' is one"):
        calibrant.smooth(Scaled(nn.Conv2d(3, 4, 3), Second()), where="1")


class Counting(Keyword):
    """A network that counts its passes in buffers and in an attribute, and keeps the last mean."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("moved", torch.zeros(2))
        self.register_buffer("last", None)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.moved, self.last, self.calls = self.moved + 1, x.mean(), self.calls + 1
        return super().forward(x)


@pytest.mark.parametrize("inplace", [False, True])
def test_tracing_restores_buffers(inplace: bool) -> None:
    model = Counting()
    seen, moved = model.seen, model.moved
    smooth = calibrant.smooth(model, inplace=inplace)
    for one in (model, smooth):
        assert int(one.seen) == 0 and not one.moved.any() and one.last is None
    assert model.seen is seen and model.moved is moved
    assert inplace or model.calls == 0  # the copy is traced


def test_the_original_is_not_run_if_a_copy_is_made() -> None:
    model, ran = Keyword(), []
    model.p.register_forward_hook(lambda module, args, output: ran.append(module))
    calibrant.smooth(model)
    assert model.p not in ran


@pytest.mark.parametrize("where", [lambda module: True, lambda a, b, c: True, lambda: True])
def test_a_function_with_other_arguments_is_refused_with_the_signature(where: Any) -> None:
    with pytest.raises(InputError, match=r"where\(name, module\) -> bool; this one takes \("):
        calibrant.smooth(Keyword(), where=where)


class Normed(nn.Module):
    """A function pools the output of a BatchNorm, so the layer is a hook on the norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.n = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.n(self.b(F.relu(self.a(x))))), 2)


def test_smoothing_works_after_conversion_to_synchronised_norms() -> None:
    """The conversion makes new modules without hooks, so convert first (docs/smoothing.md)."""
    model = Normed().eval()
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model)).eval()
    smooth = calibrant.smooth(converted)
    assert isinstance(smooth.n, nn.SyncBatchNorm) and list(smoothed(smooth)) == ["after n"]
    with torch.no_grad():
        torch.testing.assert_close(smooth(X), calibrant.smooth(model)(X))


def test_relu6_everywhere_keeps_layers_before_a_relu() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.MaxPool2d(2)).eval()
    smooth = calibrant.smooth(model, where=["3"])
    with torch.no_grad():
        expected = F.max_pool2d(Smooth()(model[2](F.relu6(model[0](X)))).clamp(max=6), 2)
        torch.testing.assert_close(relu6(smooth)(X), expected)


@pytest.mark.parametrize("norm", [nn.InstanceNorm2d, lambda width: nn.GroupNorm(width, width)])
def test_norms_computed_on_a_view(norm: Any) -> None:
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), norm(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    assert list(smoothed(calibrant.smooth(nn.Sequential(*layers)))) == ["before 5"]


def test_lazy_layers_are_refused_until_they_have_a_shape() -> None:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.ReLU(), nn.LazyConv2d(4, 3), nn.MaxPool2d(2))
    with pytest.raises(InputError, match="lazy layers.*run one first"):
        calibrant.smooth(model, example=X)
    model(X)
    assert list(smoothed(calibrant.smooth(model))) == ["before 4"]
