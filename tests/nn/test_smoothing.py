"""Spatial smoothing on the CPU: Blur and Prob against naive convolutions (SS Eq. 5–8), of any order of gradient."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.errors import InputError
from calibrant.nn.blur import blur, kernel_of
from calibrant.nn.smoothing import Blur, Prob, Smooth, prob

KERNELS = [(1,), (1, 1), (1, 2, 1), (1, 4, 6, 4, 1), (1, 3, 3, 1), (1, 2, 4)]
X = torch.randn(2, 3, 7, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("padding", ["replicate", "reflect", "zero"])
def test_eq_8_blur_is_a_depthwise_convolution_with_k_outer_k(kernel: tuple[int, ...], padding: str) -> None:
    taps = torch.tensor(kernel_of(kernel), dtype=torch.float64)
    left, right = (len(kernel) - 1) // 2, len(kernel) // 2
    around = (left, right, left, right)
    padded = F.pad(X, around, mode="constant" if padding == "zero" else padding) if len(kernel) > 1 else X
    weight = torch.outer(taps, taps).expand(3, 1, -1, -1)
    torch.testing.assert_close(Blur(kernel, padding)(X), F.conv2d(padded, weight, groups=3))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_one_two_and_three_dimensions_keep_the_size_and_the_mean_of_constants(axes: int) -> None:
    x = torch.full((2, 3) + (6,) * axes, 4.0)
    torch.testing.assert_close(Blur((1, 2, 1), axes=axes)(x), x)


def test_eq_6_and_7_prob_by_hand() -> None:
    for z in (-3.0, 0.0, 2.0, 40.0):
        value = torch.tensor(z, dtype=torch.float64)
        assert prob(value, "tanh", 10.0).item() == pytest.approx(max(0.0, 10 * math.tanh(z / 10)))
        assert prob(value, "relu6").item() == min(max(z, 0.0), 6.0)
        assert prob(value, "constant", 5.0).item() == max(z, 0.0) / 5
        assert prob(value, "none").item() == max(z, 0.0)


@pytest.mark.parametrize("kernel", KERNELS[:4])
@pytest.mark.parametrize("padding", ["replicate", "reflect", "zero"])
def test_first_and_second_gradients(kernel: tuple[int, ...], padding: str) -> None:
    layer, x = Smooth(kernel, padding=padding), X[:1, :1].clone().requires_grad_()
    assert torch.autograd.gradcheck(layer, (x,))
    assert torch.autograd.gradgradcheck(layer, (x,))


def test_box_is_the_papers_average_pool_without_growth() -> None:
    inside = F.avg_pool2d(X, 2, 1)  # loses the last row and column
    torch.testing.assert_close(Blur("box")(X)[..., :-1, :-1], inside)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Smooth(tau=0.0), "tau"),
        (lambda: Smooth((1, -1)), "positive sum"),
        (lambda: Smooth("gauss"), "gauss"),
        (lambda: Prob("sigmoid"), "sigmoid"),
        (lambda: Blur(padding="wrap"), "wrap"),
        (lambda: Blur(axes=4), "axes"),
        (lambda: Smooth((1, 4, 6, 4, 1))(torch.zeros(1, 1, 3, 3)), "smaller than the kernel"),
    ],
)
def test_bad_settings_are_named(make, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


def test_the_input_is_not_changed() -> None:
    x = X.clone()
    blur(x, kernel_of((1, 2, 1)))
    assert torch.equal(x, X)
