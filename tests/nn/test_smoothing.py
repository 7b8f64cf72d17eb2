"""Spatial smoothing on the CPU: Blur and Prob against naive convolutions (SS Eq. 5–8), of any order of gradient."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.errors import InputError, MissingDependencyError
from calibrant.nn import smoothing
from calibrant.nn.blur import blur, kernel_of
from calibrant.nn.smoothing import Blur, Prob, Smooth, prob, reference

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
        assert prob(value, "relu6", 10.0).item() == min(max(z, 0.0), 10.0)  # as named, it has 6; τ moves it
        assert prob(value, "constant", 5.0).item() == max(z, 0.0) / 5
        assert prob(value, "none").item() == max(z, 0.0)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
def test_tau_may_be_any_number_and_prob_compiles_whole() -> None:
    for tau in (4, 4.0, np.float32(4), torch.tensor(4.0)):
        torch.testing.assert_close(prob(X, tau=tau), 4 * torch.tanh(X.relu() / 4))
    torch._dynamo.reset()
    compiled = torch.compile(lambda z, tau: prob(z, "tanh", tau), backend="eager", fullgraph=True)
    for tau in (4.0, 5.0, 7):
        torch.testing.assert_close(compiled(X, tau), prob(X, tau=tau))


@pytest.mark.parametrize("kernel", KERNELS[:4])
@pytest.mark.parametrize("padding", ["replicate", "reflect", "zero"])
def test_first_and_second_gradients(kernel: tuple[int, ...], padding: str) -> None:
    layer, x = Smooth(kernel, padding=padding), X[:1, :1, :5, :6].clone().requires_grad_()
    assert torch.autograd.gradcheck(layer, (x,))
    assert torch.autograd.gradgradcheck(layer, (x,))


def test_box_is_the_papers_average_pool_without_growth() -> None:
    inside = F.avg_pool2d(X, 2, 1)  # loses the last row and column
    torch.testing.assert_close(Blur("box")(X)[..., :-1, :-1], inside)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Smooth(tau=0.0), "tau"),
        (lambda: Smooth(tau=-3.0), "tau=-3.0"),
        (lambda: Smooth(tau=math.nan), "tau"),
        (lambda: Smooth(tau=True), "tau=True"),
        (lambda: Smooth(tau=torch.tensor([1.0, 2.0])), "one number"),
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
        (lambda: Prob("sigmoid"), "sigmoid"),
        (lambda: Blur(padding="wrap"), "wrap"),
        (lambda: Blur(axes=4), "axes"),
        (lambda: Smooth((1, 4, 6, 4, 1))(torch.zeros(1, 1, 3, 3)), "3×3 is smaller than the kernel of 5 taps"),
        (lambda: Blur((1, 2, 1), axes=1)(torch.zeros(1, 1, 2)), "map of 2 is smaller"),
        (lambda: Smooth()(torch.zeros(4, 8)), "needs a map"),
        (lambda: Smooth()(torch.zeros(1, 1, 4, 4, dtype=torch.uint8)), r"^a map of torch.uint8 .* x.float\(\)$"),
        (lambda: Blur((1, 2, 1))(torch.zeros(1, 1, 4, 4, dtype=torch.long)), "a map of torch.int64"),
        (lambda: prob(torch.zeros(3, dtype=torch.bool)), "a map of torch.bool"),
        (lambda: prob(X, tau=0.0), "tau=0.0"),
        (lambda: prob(X, tau=-3), "tau=-3 must be one number, positive"),
        (lambda: prob(X, "none", tau=math.inf), "tau=inf"),
        (lambda: prob(X, tau=True), "tau=True"),
        (lambda: prob(X, "sigmoid", 1.0), "prob='sigmoid' is unknown"),
    ],
)
def test_bad_settings_are_named(make, says: str) -> None:
    with pytest.raises(InputError, match=says):
        make()


@pytest.mark.parametrize("upper", ["tanh", "relu6", "constant", "none", "identity"])
def test_the_input_is_not_changed(upper: str) -> None:
    x = X.clone()
    blur(x, kernel_of((1, 2, 1)))
    Smooth(prob=upper)(x)
    assert torch.equal(x, X)


@pytest.mark.parametrize("upper", ["tanh", "relu6", "constant", "none", "identity"])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_eq_5_smooth_is_blur_of_prob_with_the_gradients_of_plain_operations(upper: str, axes: int) -> None:
    """Against torch's own relu, tanh, pad and conv, whose derivatives are not ours."""
    g = torch.Generator().manual_seed(axes)
    z = (8 * torch.randn(2, 3, *[6] * axes, dtype=torch.float64, generator=g)).requires_grad_()
    bounded = {"tanh": 4 * torch.tanh(z / 4), "relu6": z.clamp(max=4), "constant": z / 4}.get(upper, z)
    bounded = bounded if upper == "identity" else bounded.relu()
    taps = torch.tensor([0.25, 0.5, 0.25], dtype=torch.float64)
    k = taps
    for _ in range(axes - 1):
        k = k[..., None] * taps
    padded = F.pad(bounded, [1] * 2 * axes, mode="replicate")
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[axes]
    expected = conv(padded, k.expand(3, 1, *k.shape), groups=3)
    out = Smooth((1, 2, 1), prob=upper, tau=4.0, axes=axes)(z)
    torch.testing.assert_close(out, expected)
    weight = torch.randn(out.shape, dtype=torch.float64, generator=g)
    for a, b in zip(_derivatives(out, z, weight), _derivatives(expected, z, weight), strict=True):
        torch.testing.assert_close(a, b)


def _derivatives(y: torch.Tensor, z: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient, and the Hessian of Σ w y² times a vector."""
    (first,) = torch.autograd.grad((weight * y.square()).sum(), z, create_graph=True)
    return first, torch.autograd.grad((first * weight).sum(), z, retain_graph=True)[0]


@pytest.mark.parametrize("padding", ["replicate", "reflect", "zero"])
def test_vmap(padding: str) -> None:
    layer, t = Smooth((1, 4, 6, 4, 1), padding=padding), torch.randn_like(X)
    torch.testing.assert_close(torch.func.vmap(layer)(torch.stack([X, t])), torch.stack([layer(X), layer(t)]))


def test_one_map_beside_the_result_and_none_for_autograd() -> None:
    """Peak of what is allocated in a forward pass, and what autograd holds on to, in maps."""
    from torch.profiler import ProfilerActivity, profile

    x = torch.randn(4, 16, 64, 64)
    layer, size = Smooth(), x.numel() * 4
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        layer(x)
    held = peak = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert size < peak <= 2.1 * size
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):
        layer(x.requires_grad_())
    assert set(saved) == {x.data_ptr()}


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_every_mean_is_kept_away_from_the_border(axes: int) -> None:
    """A blurred impulse has the kernel's values, Π_axis k_i, around it; and its sum."""
    x = torch.zeros(1, 1, *[9] * axes, dtype=torch.float64)
    x[(0, 0, *[4] * axes)] = 1.0
    out = Blur((1, 2, 4), axes=axes)(x)
    assert out.sum().item() == pytest.approx(1.0)
    for offsets in [(0,) * axes, (-1,) * axes, (1,) * axes]:
        value = out[(0, 0, *[4 + o for o in offsets])].item()
        assert value == pytest.approx(math.prod({-1: 4 / 7, 0: 2 / 7, 1: 1 / 7}[o] for o in offsets))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch scripts its own forward derivatives
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
@pytest.mark.parametrize("layer", [Smooth((1, 2, 1)), Smooth(prob="none"), Blur((1, 1), "reflect"), Prob()])
def test_forward_mode_and_hessians_through_it(layer: nn.Module) -> None:
    z = 4 * torch.randn(1, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with reference():
        assert torch.autograd.gradcheck(layer, z.clone().requires_grad_(), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(layer, z.clone().requires_grad_(), check_fwd_over_rev=True)

        def cubes(x: Tensor) -> Tensor:
            out: Tensor = layer(x).pow(3).sum()
            return out

        expected = torch.autograd.functional.hessian(cubes, z)  # reverse over reverse
        torch.testing.assert_close(torch.func.hessian(cubes)(z), expected)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(z.requires_grad_()), layer(z))


def test_without_triton_a_map_on_cuda_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    for name in ("smooth", "smooth_triton", "lanes"):
        monkeypatch.delitem(sys.modules, f"calibrant.nn.kernels.{name}", raising=False)
    if kernels := sys.modules.get("calibrant.nn.kernels"):
        monkeypatch.delattr(kernels, "smooth", raising=False)
    with pytest.raises(MissingDependencyError, match=r"pip install triton .*nn\.Sequential\(Prob"):
        smoothing._kernel()
