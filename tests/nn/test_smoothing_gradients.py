"""Smoothing's derivatives off the beaten path: of recorded graphs, within the promised memory, and in every mode."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.profiler import ProfilerActivity, profile

from calibrant.nn.smoothing import TAU, Prob, Smooth

UPPERS = list(TAU)
KERNELS = [(1,), (1, 1), (1, 2, 1), (1, 4, 6, 4, 1)]
SIZES = {1: (64, 1024), 2: (16, 64, 64), 3: (8, 16, 16, 16)}
X = 5 * torch.randn(2, 3, 7, 9, generator=torch.Generator().manual_seed(0))


def naive(z: Tensor, kernel: tuple[int, ...], upper: str, tau: float, axes: int) -> Tensor:
    """torch's own relu, tanh, clamp, pad and convolution."""
    bounded = {"tanh": tau * torch.tanh(z / tau), "relu6": z.clamp(max=tau), "constant": z / tau}.get(upper, z)
    p = bounded if upper == "identity" else bounded.clamp(0) if upper == "relu6" else bounded.relu()
    taps = torch.tensor(kernel, dtype=z.dtype) / sum(kernel)
    k = taps
    for _ in range(axes - 1):
        k = k[..., None] * taps
    if len(kernel) > 1:
        p = F.pad(p, [(len(kernel) - 1) // 2, len(kernel) // 2] * axes, mode="replicate")
    channels = z.shape[1]
    conv: Any = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]
    out: Tensor = conv(p, k.expand(channels, 1, *k.shape), groups=channels)
    return out


def gradient_of(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    z = z.clone().requires_grad_()
    return torch.autograd.grad(f(z).square().sum(), z)[0]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
@pytest.mark.parametrize(("upper", "kernel"), [*((u, KERNELS[-1]) for u in UPPERS), ("tanh", (1,))])
def test_what_is_exported_or_recorded_can_be_differentiated(upper: Any, kernel: tuple[int, ...]) -> None:
    """An exported program holds the operations themselves: none may overwrite what the gradient of another needs."""
    layer = Smooth(kernel, prob=upper)
    expected = gradient_of(lambda z: naive(z, kernel, upper, TAU[upper], 2), X)
    torch.testing.assert_close(gradient_of(layer, X), expected)
    exported = torch.export.export(layer, (X,)).module()
    torch.testing.assert_close(exported(X), layer(X))
    torch.testing.assert_close(gradient_of(exported, X), expected)
    for options in ({}, {"pre_dispatch": True}, {"tracing_mode": "fake"}):
        torch.testing.assert_close(gradient_of(make_fx(layer, **options)(X), X), expected)
    slope = torch.func.grad(lambda z: layer(z).square().sum())
    torch.testing.assert_close(make_fx(slope)(X)(X), expected)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # export's own
def test_a_strict_export_a_decomposed_one_one_of_prob_and_one_of_another_rank_too() -> None:
    expected = gradient_of(Smooth(), X)
    torch.testing.assert_close(gradient_of(torch.export.export(Smooth(), (X,), strict=True).module(), X), expected)
    decomposed = torch.export.export(Smooth(), (X,)).run_decompositions().module()
    torch.testing.assert_close(gradient_of(decomposed, X), expected)
    torch.testing.assert_close(gradient_of(make_fx(Prob())(X), X), gradient_of(Prob(), X))
    for axes, shape in ((1, (2, 3, 63)), (3, (1, 2, 3, 7, 9))):
        layer, z = Smooth((1, 2, 1), axes=axes), X.reshape(-1)[: math.prod(shape)].reshape(shape)
        torch.testing.assert_close(gradient_of(torch.export.export(layer, (z,)).module(), z), gradient_of(layer, z))


def peak(f: Callable[[], Any]) -> int:
    """Bytes that were alive at once, of those allocated in a call."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        kept = f()
    held = most = 0
    for event in sorted(seen.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    del kept
    return most


@pytest.mark.parametrize("upper", UPPERS)
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_backward_too_has_one_map_beside_its_result(upper: Any, axes: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        z = torch.randn(4, *SIZES[axes], dtype=dtype).requires_grad_()
        size = z.numel() * z.element_size()
        for kernel in KERNELS[:3]:
            out = Smooth(kernel, prob=upper, axes=axes)(z)
            gradient = torch.randn_like(out)
            found = peak(partial(torch.autograd.grad, out, z, gradient))
            maps = min(len(kernel), 2)  # not blurred, the result is the only one
            assert size <= found <= (maps + 0.1) * size, (dtype, kernel, found / size)  # and a border strip


@pytest.mark.parametrize("upper", UPPERS)
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("kernel", KERNELS[:3])
def test_the_backward_in_place_is_the_differentiable_one_and_the_naive_one(
    upper: Any, axes: int, kernel: tuple[int, ...]
) -> None:
    g = torch.Generator().manual_seed(axes)
    z = (8 * torch.randn(2, 3, *[4] * axes, dtype=torch.float64, generator=g)).requires_grad_()
    with torch.no_grad():
        z[0, 0] = 0.0  # the bends
        z[0, 1] = 4.0
    out = Smooth(kernel, prob=upper, tau=4.0, axes=axes)(z)
    w = torch.randn(out.shape, dtype=torch.float64, generator=g)
    before = w.clone()
    (found,) = torch.autograd.grad(out, z, w, retain_graph=True)
    (graphed,) = torch.autograd.grad(out, z, w, create_graph=True)
    (expected,) = torch.autograd.grad(naive(z, kernel, upper, 4.0, axes), z, w)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(graphed.detach(), found)
    assert torch.equal(w, before)  # and what came in is not written to
    assert torch.autograd.gradcheck(Smooth(kernel, prob=upper, tau=4.0, axes=axes), z[1:, 2:].detach().requires_grad_())


@pytest.mark.parametrize("upper", UPPERS)
@pytest.mark.parametrize("kernel", KERNELS[:2])
def test_gradients_that_are_no_plain_maps(upper: Any, kernel: tuple[int, ...]) -> None:
    """Expanded from a number, in another layout, of a map that is a row repeated, shared by two layers, or empty."""
    layer = Smooth(kernel, prob=upper)
    z = X.clone().requires_grad_()
    (one,) = torch.autograd.grad(layer(z).sum(), z)
    (plain,) = torch.autograd.grad(layer(z), z, torch.ones_like(X))
    torch.testing.assert_close(one, plain)
    last = X.to(memory_format=torch.channels_last).clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(layer(last).sum(), last)[0], plain)
    torch.testing.assert_close(torch.autograd.grad(layer(z), z, torch.ones_like(X).mT.contiguous().mT)[0], plain)
    row = X[..., :1].clone().requires_grad_()
    spread = torch.autograd.grad(layer(row.expand_as(X)).square().sum(), row)[0]
    expected = gradient_of(layer, X[..., :1].expand_as(X)).sum(-1, keepdim=True)
    torch.testing.assert_close(spread, expected)
    both = z * 1
    twice = torch.autograd.grad((layer(z) + layer(both)).square().sum(), z)[0]
    torch.testing.assert_close(twice, gradient_of(lambda v: 2 * layer(v), X))
    empty = X[:0].clone().requires_grad_()
    assert torch.autograd.grad(layer(empty).sum(), empty)[0].shape == empty.shape


class Tagged(Tensor):
    """A class of its own, which must see every operation."""


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch scripts its own forward derivatives
@pytest.mark.parametrize("upper", UPPERS)
@pytest.mark.parametrize("kernel", KERNELS[:2])
def test_batched_dual_and_tagged_gradients_take_the_differentiable_way(upper: Any, kernel: tuple[int, ...]) -> None:
    layer, z = Smooth(kernel, prob=upper, tau=4.0), X[:1, :2].double().requires_grad_()
    g = torch.randn(3, *z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    each = torch.stack([torch.autograd.grad(layer(z), z, one)[0] for one in g])
    torch.testing.assert_close(torch.autograd.grad(layer(z), z, g, is_grads_batched=True)[0], each)
    _, pull = torch.func.vjp(layer, z.detach())
    torch.testing.assert_close(torch.func.vmap(pull)(g)[0], each)
    jacobian = torch.autograd.functional.jacobian(layer, z, vectorize=True)
    torch.testing.assert_close(torch.tensordot(g, jacobian, 4), each)
    assert torch.autograd.gradcheck(layer, z, check_batched_grad=True, check_forward_ad=True)
    (first,) = torch.autograd.grad(layer(z).square().sum(), z, create_graph=True)
    (expected,) = torch.autograd.grad(first, z, g[1])
    with forward_ad.dual_level():  # forward over reverse, with no graph of the reverse pass
        dual = forward_ad.make_dual(z, g[1])
        (moved,) = torch.autograd.grad(layer(dual).square().sum(), dual)
        torch.testing.assert_close(forward_ad.unpack_dual(moved).tangent, expected)
    tagged = gradient_of(layer, X.as_subclass(Tagged)).as_subclass(Tensor)
    torch.testing.assert_close(tagged, gradient_of(layer, X))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own
def test_compiled_layers_gradients() -> None:
    """All of them in one graph: compiling takes longer than what is compiled."""
    torch._dynamo.reset()
    layers = [Smooth((1, 2, 1), prob=upper) for upper in UPPERS]
    z = torch.stack([X.clone() for _ in layers])

    def each(maps: Tensor) -> Tensor:
        return torch.stack([layer(z) for layer, z in zip(layers, maps, strict=True)])

    compiled = torch.compile(each, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradient_of(compiled, z), torch.stack([gradient_of(layer, X) for layer in layers]))
