"""Layers inserted on a CUDA device are at the same places as on the CPU, and compute the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import calibrant
from calibrant.nn import build
from calibrant.nn.activations import relu6, unrelu6
from calibrant.nn.antialias import blurpool, blurpooled, unblurpool
from calibrant.nn.smoothing import Blur, Smooth, reference
from calibrant.nn.surgery import smooth, smoothed, unsmooth

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
X = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SURGERY: list[tuple[Callable[[nn.Module], nn.Module], Callable[[nn.Module], nn.Module]]] = [
    (smooth, unsmooth), (blurpool, unblurpool), (relu6, unrelu6), (lambda m: blurpool(smooth(m)), unsmooth),
]  # fmt: skip


@pytest.mark.parametrize(("put_in", "take_out"), SURGERY, ids=["smooth", "blurpool", "relu6", "both"])
def test_layers_stand_where_they_stand_on_the_cpu(
    put_in: Callable[[nn.Module], nn.Module], take_out: Callable[[nn.Module], nn.Module]
) -> None:
    model = build("resnet20", classes=5, shortcut="conv").double().eval()
    here, there = put_in(model), put_in(build("resnet20", classes=5, shortcut="conv").double().eval().cuda())
    assert smoothed(here).keys() == smoothed(there).keys() and blurpooled(here).keys() == blurpooled(there).keys()
    with torch.no_grad():
        torch.testing.assert_close(there(X.double().cuda()).cpu(), here(X.double()))
        torch.testing.assert_close(there.float()(X.cuda()).cpu(), here.float()(X), atol=2e-2, rtol=2e-2)
    take_out(there)
    assert not smoothed(there)


def test_an_example_on_the_device_is_traced_and_random_numbers_are_left_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Dropout(), nn.Conv2d(4, 4, 3), nn.MaxPool2d(2)).cuda()
    rng = torch.cuda.get_rng_state()
    assert list(smoothed(calibrant.smooth(model, example=X.cuda()))) == ["before 4"]
    assert torch.equal(rng, torch.cuda.get_rng_state())


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (Smooth((1, 2, 1), axes=1), (2, 3, 17)),
        (Smooth(axes=3, padding="zero"), (2, 3, 5, 6, 7)),
        (Smooth((1, 1, 1, 1, 1, 1), padding="reflect"), (2, 3, 9, 9)),
        (Smooth(prob="identity"), (2, 3, 8, 8)),
        (Blur((1, 4, 6, 4, 1), "reflect"), (2, 3, 8, 8)),
    ],
)
def test_what_the_kernel_does_not_take_goes_the_plain_way(layer: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    z, w = x.clone().requires_grad_(), x.cuda().requires_grad_()
    torch.testing.assert_close(layer(w).cpu(), layer(z), atol=1e-5, rtol=1e-5)
    dz, dw = (torch.autograd.grad(layer(t).square().sum(), t)[0] for t in (z, w))
    torch.testing.assert_close(dw.cpu(), dz, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own forward derivatives
def test_a_second_derivative_inside_reference() -> None:
    x = torch.randn(1, 2, 4, 4, generator=torch.Generator().manual_seed(1))
    with reference():
        here, there = (torch.func.hessian(lambda z: Smooth()(z).square().sum())(t) for t in (x, x.cuda()))
    torch.testing.assert_close(there.cpu(), here, atol=1e-5, rtol=1e-5)
