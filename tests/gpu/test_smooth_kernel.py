"""The fused Smooth against its plain twin on a CUDA device: values and gradients, every kernel, padding and layout."""

from __future__ import annotations

import pytest
import torch

from calibrant.nn.smoothing import Smooth, reference

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

KERNELS = [(1,), (1, 1), (1, 2, 1), (1, 3, 3, 1), (1, 4, 6, 4, 1), (1, 2, 4)]


def both(layer: Smooth, x: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(value, gradient) of the fused path in x's dtype and of the plain path in float64."""
    g = torch.randn(x.shape, device="cuda", dtype=torch.float64, generator=torch.Generator("cuda").manual_seed(1))
    out = []
    for plain in (False, True):
        z = (x.double() if plain else x).detach().requires_grad_()
        if plain:
            with reference():
                y = layer(z)
        else:
            y = layer(z)
        (dz,) = torch.autograd.grad(y, z, g.to(y.dtype))
        out.append((y.detach().double(), dz.double()))
    return out


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("padding", ["replicate", "reflect", "zero"])
@pytest.mark.parametrize("upper", ["tanh", "relu6", "constant", "none"])
@pytest.mark.parametrize("layout", ["nchw", "channels_last"])
def test_equals_the_plain_path(kernel: tuple[int, ...], padding: str, upper: str, layout: str) -> None:
    x = 4 * torch.randn(2, 5, 9, 7, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    if layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    (y, dz), (y0, dz0) = both(Smooth(kernel, prob=upper, padding=padding), x)
    torch.testing.assert_close(y, y0, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(dz, dz0, atol=5e-6, rtol=5e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1, 5, 5), (3, 17, 33, 6), (2, 64, 16, 16), (2, 8, 40, 37)])
def test_half_precision_and_odd_shapes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = (3 * torch.randn(shape, device="cuda")).to(dtype)
    for z in (x, x.to(memory_format=torch.channels_last), x.transpose(2, 3), x[:, :, 1:, :]):
        (y, dz), (y0, dz0) = both(Smooth((1, 2, 1)), z)
        torch.testing.assert_close(y, y0, atol=3e-2, rtol=2e-2)
        torch.testing.assert_close(dz, dz0, atol=3e-2, rtol=2e-2)


def test_compiles_exports_and_passes_opcheck() -> None:
    layer, x = Smooth().cuda(), torch.randn(2, 4, 8, 8, device="cuda")
    from calibrant.nn.kernels.smooth import smooth

    torch.library.opcheck(smooth, (x, [0.5, 0.5], "tanh", 10.0, "replicate"))
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))
    exported = torch.export.export(layer, (x,)).module()
    torch.testing.assert_close(exported(x), layer(x))


def test_autocast_and_reference_scope() -> None:
    layer, x = Smooth().cuda(), torch.randn(2, 4, 8, 8, device="cuda", dtype=torch.float64, requires_grad=True)
    with reference():
        assert torch.autograd.gradgradcheck(layer, (x[:1, :1],))
    assert layer(x).dtype == torch.float64  # float64 takes the plain path
