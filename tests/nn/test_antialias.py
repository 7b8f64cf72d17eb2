"""BlurPool (Zhang 2019; SS App. F) against loops and against networks built by hand. Its surgery is undone exactly."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.errors import InputError, UnknownNameError
from calibrant.nn import build
from calibrant.nn.antialias import BlurPool, blurpool, blurpooled, unblurpool
from calibrant.nn.surgery import smooth, smoothed, unsmooth

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
EDGES = {"replicate": lambda i, n: min(max(i, 0), n - 1), "reflect": lambda i, n: n - 1 - abs(n - 1 - abs(i))}


def by_loops(x: Tensor, kernel: tuple[int, ...], stride: int, padding: str) -> Tensor:
    """Return Σ_ij k_i k_j x[s·p + i − left, s·q + j − left] / ‖k‖₁², one point at a time in float64."""
    n, c, h, w = x.shape
    left, total = (len(kernel) - 1) // 2, sum(kernel) ** 2
    out = torch.zeros(n, c, -(-h // stride), -(-w // stride), dtype=torch.float64)
    for p in range(out.shape[2]):
        for q in range(out.shape[3]):
            for i, a in enumerate(kernel):
                for j, b in enumerate(kernel):
                    row, column = stride * p + i - left, stride * q + j - left
                    inside = 0 <= row < h and 0 <= column < w
                    if padding == "zero" and not inside:
                        continue
                    at = (row, column) if inside else (EDGES[padding](row, h), EDGES[padding](column, w))
                    out[:, :, p, q] += a * b / total * x[:, :, at[0], at[1]].double()
    return out


@pytest.mark.parametrize("padding", ["replicate", "reflect", "zero"])
@pytest.mark.parametrize("kernel", [(1,), (1, 1), (1, 2, 1), (1, 4, 6, 4, 1)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_blurpool_is_its_loop(kernel: tuple[int, ...], stride: int, padding: str) -> None:
    x = torch.randn(2, 3, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(stride))
    torch.testing.assert_close(BlurPool(stride, kernel, padding)(x), by_loops(x, kernel, stride, padding))


def test_blurpool_has_the_right_gradient_and_other_dimensions() -> None:
    x = torch.randn(1, 2, 5, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(BlurPool(2), (x,)) and torch.autograd.gradgradcheck(BlurPool(2), (x,))
    assert BlurPool(2, axes=1)(torch.ones(1, 2, 9)).shape == (1, 2, 5)
    assert BlurPool((1, 2, 2), axes=3)(torch.ones(1, 2, 4, 4, 4)).shape == (1, 2, 4, 2, 2)


@pytest.mark.parametrize(
    ("name", "options", "places"),
    [
        ("resnet20", {"shortcut": "conv"}, 4),  # two blocks, each with its shortcut
        ("resnet29v2", {}, 4),
        ("resnet20", {}, 2),  # option A's shortcut slices: no layer to anti-alias
        ("vgg16", {"preact": True, "head": "gap"}, 5),
    ],
)
def test_with_kernel_1_the_outputs_do_not_change(name: str, options: dict[str, object], places: int) -> None:
    model = build(name, classes=10, **options).eval()
    made = blurpool(model, kernel=(1,))
    with torch.no_grad():
        torch.testing.assert_close(made(X), model(X), rtol=1e-4, atol=1e-5)
        assert len(blurpooled(made)) == places and not blurpooled(model) and not smoothed(made)
        assert torch.equal(copy.deepcopy(made)(X), made(X))
        assert torch.equal(unblurpool(made)(X), model(X)) and not blurpooled(made)
    assert made.state_dict().keys() == model.state_dict().keys()


def test_a_block_agrees_with_zhang() -> None:
    """A convolution at stride 1, norm, ReLU, BlurPool, convolution; the shortcut's 1×1 is blurred and subsampled."""
    model = build("resnet18", classes=10).eval()
    made = blurpool(model)
    block, pool = model.layer2[0], BlurPool(2)
    x = torch.randn(2, 64, 16, 16)
    with torch.no_grad():
        y = F.relu(block.bn1(F.conv2d(x, block.conv1.weight, padding=1)))
        y = block.bn2(block.conv2(pool(y)))
        norm = block.downsample[1]
        expected = F.relu(y + norm(pool(F.conv2d(x, block.downsample[0].weight))))
        torch.testing.assert_close(made.layer2[0](x), expected, rtol=1e-4, atol=1e-5)


def test_a_relu_that_is_called_twice_gets_no_layer() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()
            self.strided, self.last = nn.Conv2d(4, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            x = self.relu(self.first(x))
            return self.relu(self.last(self.relu(self.strided(x)))).mean((2, 3))

    model = Block().eval()
    made = blurpool(model)
    assert list(blurpooled(made)) == ["before last"]
    with torch.no_grad():
        y = F.relu(F.conv2d(F.relu(model.first(X)), model.strided.weight, model.strided.bias, padding=1))
        torch.testing.assert_close(made(X), F.relu(model.last(BlurPool(2)(y))).mean((2, 3)))


def test_max_pools_become_dense_before_the_blur() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3)).eval()
    made = blurpool(model, "1", kernel=(1, 1), padding="replicate")
    with torch.no_grad():
        expected = model[2](BlurPool(2, (1, 1), "replicate")(F.max_pool2d(model[0](X), 2, 1)))
        torch.testing.assert_close(made(X), expected)
    assert made[1].stride == 1 and unblurpool(made)[1].stride == 2


def test_build_has_the_option_and_puts_prob_first() -> None:
    pools = ("stages.0.4", "stages.1.4", "stages.2.5", "stages.3.5")
    model = build("vgg16", classes=10, preact=True, head="gap", smooth={"kernel": (1,)}, blurpool={"where": pools})
    assert len(smoothed(model)) == 5 and list(blurpooled(model)) == [f"after {name}" for name in pools]
    assert model(X).shape == (2, 10)


def test_smoothing_after_blurpool_is_refused() -> None:
    model = build("resnet20", classes=10).eval()
    antialiased = blurpool(model)
    with pytest.raises(InputError, match="unblurpool"):
        smooth(antialiased)
    both = blurpool(smooth(unblurpool(antialiased)))
    assert list(smoothed(both)) == ["before layer2.0", "before layer3.0", "after layer3"]
    with torch.no_grad():
        assert torch.equal(unblurpool(unsmooth(both))(X), model(X))


def test_impossible_requests_are_errors() -> None:
    model = build("vgg16", classes=10, head="gap")
    with pytest.raises(InputError, match=r"stages\.4\.5: a map of 1×1 is smaller than the kernel"):
        blurpool(model)
    assert not blurpooled(model) and model.stages[0][4].stride == 2
    with pytest.raises(InputError, match=r"'head' is not a strided convolution or max pool; there are stages\.0\.4"):
        blurpool(model, "head")
    with pytest.raises(InputError, match="no strided convolution or max pool"):
        blurpool(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)))
    with pytest.raises(InputError, match="no convolution"):
        blurpool(nn.Linear(3, 4))
    with pytest.raises(InputError, match="ceil_mode"):
        blurpool(nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2, ceil_mode=True)))
    made = blurpool(build("resnet20", classes=10))
    with pytest.raises(InputError, match="already"):
        blurpool(made)
    with pytest.raises(InputError, match="stride"):
        BlurPool(0)
    with pytest.raises(UnknownNameError, match="option of blurpool"):
        build("resnet20", classes=10, blurpool={"tau": 3})
