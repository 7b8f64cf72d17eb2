"""Spatial smoothing on the CPU against torch's own operations (SS Eq. 5–8): values, derivatives of any order and in any
mode, recorded and compiled graphs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from calibrant.errors import InputError, MissingDependencyError
from calibrant.nn import smoothing
from calibrant.nn.blur import PADDINGS
from calibrant.nn.smoothing import TAU, Blur, Prob, Smooth, reference

# these warnings come from torch's own code: forward derivatives, Dynamo and export
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
]

UPPERS = list(TAU)
KERNELS = [(1,), (1, 1), (1, 2, 1), (1, 4, 6, 4, 1), (1, 3, 3, 1), (1, 2, 4)]
X = 5 * torch.randn(2, 3, 7, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def naive(z: Tensor, kernel: tuple[int, ...], upper: str, tau: float, axes: int, padding: str = "replicate") -> Tensor:
    """Return the same by torch's own relu, tanh, clamp, pad and convolution with k ⊗ k."""
    bounded = {"tanh": tau * torch.tanh(z / tau), "relu6": z.clamp(max=tau), "constant": z / tau}.get(upper, z)
    p = bounded if upper == "identity" else bounded.clamp(0) if upper == "relu6" else bounded.relu()
    taps = torch.tensor(kernel, dtype=z.dtype) / sum(kernel)
    k = taps
    for _ in range(axes - 1):
        k = k[..., None] * taps
    if len(kernel) > 1:
        around = [(len(kernel) - 1) // 2, len(kernel) // 2] * axes
        p = F.pad(p, around, mode="constant" if padding == "zero" else padding)
    channels = z.shape[1]
    conv: Any = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    out: Tensor = conv(p, k.expand(channels, 1, *k.shape), groups=channels)
    return out


def gradient_of(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    z = z.clone().requires_grad_()
    return torch.autograd.grad(f(z).square().sum(), z)[0]


@pytest.mark.parametrize("upper", UPPERS)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_eq_5_to_8_and_their_derivatives_are_those_of_plain_operations(upper: Any, axes: int) -> None:
    """Also at the kinks, in place, and for a second derivative. Neither the map nor the gradient may be written to."""
    g = torch.Generator().manual_seed(axes)
    z = (8 * torch.randn(2, 3, *[5] * axes, dtype=torch.float64, generator=g)).requires_grad_()
    with torch.no_grad():
        z[0, 0], z[0, 1] = 0.0, 4.0
    w, v = (torch.randn(z.shape, dtype=torch.float64, generator=g) for _ in range(2))
    before = z.detach().clone(), w.clone()
    for padding in PADDINGS:
        for kernel in KERNELS:
            out = Smooth(kernel, prob=upper, tau=4.0, padding=padding, axes=axes)(z)
            expected = naive(z, kernel, upper, 4.0, axes, padding)
            torch.testing.assert_close(out, expected)
            torch.testing.assert_close(*(torch.autograd.grad(y, z, w, retain_graph=True)[0] for y in (out, expected)))
            firsts = [torch.autograd.grad((w * y.square()).sum(), z, create_graph=True)[0] for y in (out, expected)]
            torch.testing.assert_close(*firsts)
            torch.testing.assert_close(*(torch.autograd.grad((first * v).sum(), z)[0] for first in firsts))
            blurred = Blur(kernel, padding, axes)(z)
            torch.testing.assert_close(blurred, naive(z, kernel, "identity", 1.0, axes, padding))
    assert torch.equal(z, before[0]) and torch.equal(w, before[1])


def test_eq_6_and_7_prob_by_hand() -> None:
    for z in (-3.0, 0.0, 2.0, 40.0):
        value = torch.tensor(z, dtype=torch.float64)
        assert Prob("tanh", 10.0)(value).item() == pytest.approx(max(0.0, 10 * math.tanh(z / 10)))
        assert Prob("relu6")(value).item() == min(max(z, 0.0), 6.0)
        assert Prob("relu6", 10.0)(value).item() == min(max(z, 0.0), 10.0)  # as named, it has 6; τ moves it
        assert Prob("constant", 5.0)(value).item() == max(z, 0.0) / 5
        assert Prob("none")(value).item() == max(z, 0.0)
    for tau in (4, np.float32(4), torch.tensor(4.0)):
        torch.testing.assert_close(Prob(tau=tau)(X), 4 * torch.tanh(X.relu() / 4))


def test_box_is_the_papers_average_pool_without_growth() -> None:
    inside = F.avg_pool2d(X, 2, 1)  # loses the last row and column
    torch.testing.assert_close(Blur("box")(X)[..., :-1, :-1], inside)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Smooth(tau=0.0), "tau=0.0 must be positive"),
        (lambda: Smooth(tau=math.nan), "tau"),
        (lambda: Smooth(tau=True), "tau=True"),
        (lambda: Smooth(tau=torch.tensor([1.0, 2.0])), "must be a number"),
        (
            lambda: Smooth(torch.ones(2, 2)),
            r"^kernel=tensor\(\[\[1., 1.\], \[1., 1.\]\]\) must be a sequence of numbers",
        ),
        (lambda: Smooth((1, -1)), "positive sum"),
        (lambda: Smooth((-2, 1)), "positive sum"),
        (lambda: Smooth(()), "positive sum"),
        (lambda: Smooth((1, math.nan)), "positive sum"),
        (lambda: Smooth((0.1, 0.2, -0.3)), "positive sum"),  # 5e-17 in floats
        (lambda: Smooth((1e308, 1e308)), "positive sum"),  # not finite
        (lambda: Smooth(("a",)), "sequence of numbers"),
        (lambda: Smooth(3), "sequence of numbers"),
        (lambda: Smooth("gauss"), "gauss"),
        (lambda: Prob("sigmoid"), "prob='sigmoid' is unknown"),
        (lambda: Blur(padding="wrap"), "wrap"),
        (lambda: Blur(axes=4), "axes"),
        (lambda: Smooth((1, 4, 6, 4, 1))(torch.zeros(1, 1, 3, 3)), "3×3 is smaller than the kernel of 5 taps"),
        (lambda: Blur((1, 2, 1), axes=1)(torch.zeros(1, 1, 2)), "map of 2 is smaller"),
        (lambda: Smooth()(torch.zeros(4, 8)), "needs a map"),
        (lambda: Smooth()(torch.zeros(1, 1, 4, 4, dtype=torch.uint8)), r"^a map of torch.uint8 .* x.float\(\)$"),
        (lambda: Blur((1, 2, 1))(torch.zeros(1, 1, 4, 4, dtype=torch.long)), "a map of torch.int64"),
        (lambda: Prob()(torch.zeros(3, dtype=torch.bool)), "a map of torch.bool"),
        (lambda: Prob("none", tau=math.inf), "tau=inf must be a number, and finite"),
    ],
)
def test_bad_settings_are_named(make, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


class Layers(nn.Module):
    """Each layer has its own map in one graph, because recording takes longer than running."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, maps: Tensor) -> Tensor:
        return torch.stack([layer(z) for layer, z in zip(self.layers, maps, strict=True)])


def test_exported_traced_and_compiled_layers_can_be_differentiated() -> None:
    """A program holds single operations; none may overwrite what the gradient of another needs."""
    torch._dynamo.reset()
    layers = Layers(Smooth((1, 2, 1)), Blur((1, 1), "reflect"), Prob("relu6"))
    z = torch.stack([X.float()] * len(layers.layers))
    expected = gradient_of(layers, z)
    compiled = torch.compile(layers, backend="aot_eager", fullgraph=True)
    for program in (torch.export.export(layers, (z,)).module(), make_fx(layers)(z), compiled):
        torch.testing.assert_close(program(z), layers(z))
        torch.testing.assert_close(gradient_of(program, z), expected)


def test_gradients_of_unusual_layouts() -> None:
    """Gradients that are expanded from a number, in another layout, of a repeated row, or empty."""
    layer = Smooth()
    z = X.clone().requires_grad_()
    (one,) = torch.autograd.grad(layer(z).sum(), z)
    (plain,) = torch.autograd.grad(layer(z), z, torch.ones_like(X))
    torch.testing.assert_close(one, plain)
    last = X.to(memory_format=torch.channels_last).clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(layer(last).sum(), last)[0], plain)
    row = X[..., :1].clone().requires_grad_()
    spread = torch.autograd.grad(layer(row.expand_as(X)).square().sum(), row)[0]
    torch.testing.assert_close(spread, gradient_of(layer, X[..., :1].expand_as(X)).sum(-1, keepdim=True))
    empty = X[:0].clone().requires_grad_()
    assert torch.autograd.grad(layer(empty).sum(), empty)[0].shape == empty.shape


def test_batched_gradients_and_forward_over_reverse() -> None:
    layer, z = Smooth(tau=4.0), X[:1, :2].double().requires_grad_()
    g = torch.randn(3, *z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    each = torch.stack([torch.autograd.grad(layer(z), z, one)[0] for one in g])
    torch.testing.assert_close(torch.autograd.grad(layer(z), z, g, is_grads_batched=True)[0], each)
    _, pull = torch.func.vjp(layer, z.detach())
    torch.testing.assert_close(torch.func.vmap(pull)(g)[0], each)
    (first,) = torch.autograd.grad(layer(z).square().sum(), z, create_graph=True)
    (expected,) = torch.autograd.grad(first, z, g[1])
    with forward_ad.dual_level():  # forward over reverse, with no graph of the reverse pass
        dual = forward_ad.make_dual(z, g[1])
        (moved,) = torch.autograd.grad(layer(dual).square().sum(), dual)
        torch.testing.assert_close(forward_ad.unpack_dual(moved).tangent, expected)


@pytest.mark.parametrize("layer", [Smooth((1, 2, 1)), Blur((1, 1), "reflect")])
def test_forward_mode_vmap_and_hessians_through_it(layer: nn.Module) -> None:
    z = 4 * torch.randn(1, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with reference():
        assert torch.autograd.gradcheck(layer, z.clone().requires_grad_(), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(layer, z.clone().requires_grad_(), check_fwd_over_rev=True)

        def cubes(x: Tensor) -> Tensor:
            out: Tensor = layer(x).pow(3).sum()
            return out

        expected = torch.autograd.functional.hessian(cubes, z)  # reverse over reverse
        torch.testing.assert_close(torch.func.hessian(cubes)(z), expected)
        torch.testing.assert_close(torch.func.vmap(layer)(torch.stack([z, -z])), torch.stack([layer(z), layer(-z)]))


def test_without_triton_a_map_on_cuda_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in ("smooth", "smooth_triton", "lanes"):
        monkeypatch.delitem(sys.modules, f"calibrant.nn.kernels.{name}", raising=False)
    if kernels := sys.modules.get("calibrant.nn.kernels"):
        monkeypatch.delattr(kernels, "smooth", raising=False)
    with pytest.raises(MissingDependencyError, match=r"pip install triton .*nn\.Sequential\(Prob"):
        smoothing._kernel()
