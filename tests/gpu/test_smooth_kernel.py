"""The fused Smooth against its plain twin on a CUDA device: values and gradients, every kernel, padding and layout.

Every combination below is a compilation of its own (about half a second), so settings that do not interact are drawn
together: each upper bound meets each kernel, padding and layout, but not all of them at once.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch.autograd import forward_ad

from calibrant.nn.smoothing import Smooth, reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

KERNELS = [(1,), (1, 1), (1, 2, 1), (1, 3, 3, 1), (1, 4, 6, 4, 1), (1, 2, 4)]
PADDINGS = ["replicate", "reflect", "zero"]
UPPERS = ["tanh", "relu6", "constant", "none"]
LAYOUTS = [torch.contiguous_format, torch.channels_last]
TOLERANCE = {torch.float32: 5e-6, torch.float16: 4e-3, torch.bfloat16: 2e-2}
EVERY = [
    (kernel, padding, UPPERS[(i + j + 2 * n) % 4], layout)
    for (i, kernel), (j, padding), (n, layout) in product(enumerate(KERNELS), enumerate(PADDINGS), enumerate(LAYOUTS))
]


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 4) -> torch.Tensor:
    return (scale * torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))).to(dtype)


def assert_equals_the_plain_path(layer: Smooth, x: torch.Tensor) -> None:
    """Compare value and gradient of the fused path, in x's dtype, with the plain path in float64."""
    tolerance = TOLERANCE[x.dtype]
    z, z0 = x.detach().requires_grad_(), x.detach().double().requires_grad_()
    y = layer(z)
    with reference():
        y0 = layer(z0)
    assert y.dtype == x.dtype and y.shape == x.shape and type(y.grad_fn).__name__ != type(y0.grad_fn).__name__
    g = draw(*x.shape, dtype=x.dtype, seed=1, scale=1)
    (dz,), (dz0,) = torch.autograd.grad(y, z, g), torch.autograd.grad(y0, z0, g.double())
    torch.testing.assert_close(y.double(), y0, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(dz.double(), dz0, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("kernel", "padding", "upper", "layout"), EVERY)
def test_equals_the_plain_path(kernel: tuple[int, ...], padding: str, upper: str, layout: torch.memory_format) -> None:
    layer, k = Smooth(kernel, prob=upper, padding=padding), max(len(kernel), 2)
    for shape in ((2, 5, 37, 7), (1, 5, k, k), (3, 5, k, 9)):  # several blocks of rows; as small as the kernel
        assert_equals_the_plain_path(layer, draw(*shape).contiguous(memory_format=layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ((1, 1), torch.float16),
        ((1, 1), torch.bfloat16),
        ((1, 2, 4), torch.float32),
        ((1, 2, 4), torch.bfloat16),
        ((1, 4, 6, 4, 1), torch.bfloat16),
    ],
)
def test_wide_accesses(kernel: tuple[int, ...], dtype: torch.dtype, layout: torch.memory_format) -> None:
    padding = PADDINGS[(len(kernel) + LAYOUTS.index(layout) + list(TOLERANCE).index(dtype)) % 3]
    x = draw(3, 64, 40, 16, dtype=dtype).contiguous(memory_format=layout)
    assert_equals_the_plain_path(Smooth(kernel, padding=padding), x)


@pytest.mark.parametrize("shape", [(1, 1, 5, 5), (3, 17, 33, 6), (2, 8, 40, 37), (2, 12, 9, 28)])
def test_odd_shapes_and_non_contiguous_maps(shape: tuple[int, ...]) -> None:
    x = draw(*shape, dtype=torch.bfloat16)
    for z in (x, x.to(memory_format=torch.channels_last), x.transpose(2, 3), x[:, :, 1:], x[:, ::2], x.flip(3)):
        assert_equals_the_plain_path(Smooth(), z)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_shapes(layout: torch.memory_format) -> None:
    sizes = torch.Generator().manual_seed(0)
    for _ in range(12):
        n, c, h, w = (
            int(torch.randint(low, high, (), generator=sizes)) for low, high in ((1, 4), (1, 40), (2, 70), (2, 70))
        )
        assert_equals_the_plain_path(Smooth(), draw(n, c, h, w, dtype=torch.bfloat16).contiguous(memory_format=layout))


def test_addresses_that_are_not_multiples_of_16_bytes() -> None:
    x = draw(2 * 8 * 9 * 16 + 1, dtype=torch.bfloat16)[1:].view(2, 8, 9, 16)
    assert x.is_contiguous() and x.data_ptr() % 16
    assert_equals_the_plain_path(Smooth(), x)
    assert_equals_the_plain_path(Smooth(), x.view(2, 9, 16, 8).permute(0, 3, 1, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_small_numbers_keep_their_relative_precision(dtype: torch.dtype) -> None:
    x = draw(1, 64, 8, 16, dtype=dtype, scale=1e-4).abs()
    with reference():
        y0 = Smooth()(x.double())
    tolerance = 1e-6 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(Smooth()(x).double(), y0, atol=0, rtol=tolerance)


@pytest.mark.parametrize("upper", UPPERS)
def test_nan_and_infinity_are_not_hidden(upper: str) -> None:
    x = draw(1, 8, 9, 16)
    x[0, 0, 4, 4], x[0, 1, 4, 4], x[0, 2, 4, 4] = float("nan"), float("inf"), -float("inf")
    layer = Smooth(prob=upper)
    with reference():
        y0 = layer(x)
    torch.testing.assert_close(layer(x), y0, equal_nan=True, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, when its compiler is first imported
def test_compiles_exports_and_passes_opcheck() -> None:
    layer, x = Smooth().cuda(), draw(2, 4, 8, 8)
    from calibrant.nn.kernels.smooth import smooth

    settings = ([0.5, 0.5], "tanh", 10.0, "replicate")
    torch.library.opcheck(smooth, (x, *settings))
    z = x.clone().requires_grad_()  # the op is what a trace sees; eager code takes a shorter way to the same launches
    (op,), (eager,) = (torch.autograd.grad(f.square().sum(), z) for f in (smooth(z, *settings), layer(z)))
    assert torch.equal(op, eager)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x))


def test_is_captured_in_a_cuda_graph() -> None:
    layer, x = Smooth(), draw(2, 4, 8, 8)
    layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    x.copy_(draw(2, 4, 8, 8, seed=2))
    graph.replay()
    torch.testing.assert_close(y, layer(x))


def test_a_repeated_launch_is_held_and_gives_the_same() -> None:
    """Repeated launches of the eager path keep addresses, settings and devices apart."""
    from calibrant.nn.kernels.smooth import _held

    _held.clear()
    x, other = draw(2, 8, 16, 16), draw(2, 8, 16, 16, seed=3)
    first = Smooth()(x)
    assert len(_held) == 1, "this version of Triton is not in LAUNCHERS: look at its launcher"
    assert torch.equal(Smooth()(x), first)
    for layer, z in ((Smooth(), other), (Smooth(tau=3.0), x), (Smooth((1, 3)), x), (Smooth(padding="zero"), x)):
        for _ in range(2):
            assert_equals_the_plain_path(layer, z)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        aside = Smooth()(other)
    torch.cuda.synchronize()
    assert torch.equal(aside, Smooth()(other))


def test_vmap_takes_the_plain_path() -> None:
    x = draw(3, 2, 4, 8, 8)
    torch.testing.assert_close(torch.func.vmap(Smooth())(x), torch.stack([Smooth()(one) for one in x]))


@pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning"
)  # torch's own, when it loads its forward derivatives
def test_dual_numbers_take_the_plain_path_and_keep_their_tangent() -> None:
    x, v = draw(2, 3, 8, 8), draw(2, 3, 8, 8, seed=1)
    with forward_ad.dual_level():
        moved = forward_ad.unpack_dual(Smooth()(forward_ad.make_dual(x, v))).tangent
    with reference():
        expected = torch.autograd.functional.jvp(Smooth(), x, v)[1]
    torch.testing.assert_close(moved, expected)


def test_a_second_derivative_of_the_kernel_is_refused_not_wrong() -> None:
    x = draw(1, 4, 8, 8).requires_grad_()
    (dx,) = torch.autograd.grad(Smooth()(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(dx.sum(), x)


def test_float64_takes_the_plain_path_and_its_second_derivative_exists() -> None:
    layer, x = Smooth(), draw(2, 4, 8, 8, dtype=torch.float64).requires_grad_()
    assert layer(x).dtype == torch.float64
    with reference():
        assert torch.autograd.gradgradcheck(layer, (x[:1, :1],))
