"""Networks that mix 1-d and 2-d convolutions: each map is blurred over its own spatial axes, never over channels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import calibrant
from calibrant.errors import InputError
from calibrant.nn.antialias import blurpool, blurpooled, unblurpool
from calibrant.nn.smoothing import Smooth
from calibrant.nn.surgery import smoothed

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def axes(model: nn.Module, **options: object) -> dict[str, int]:
    return {place: layer.blur.axes for place, layer in smoothed(calibrant.smooth(model, **options)).items()}


def conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, 1)


class Recurrent(nn.Module):
    """A 2-d trunk that is averaged over rows, and a 1-d head (CRNN)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.p = conv(3, 8), conv(8, 8), nn.MaxPool2d(2)
        self.c0, self.c1, self.c2 = (nn.Conv1d(8, 8, 3, stride, 1) for stride in (1, 2, 2))
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.p(F.relu(self.b(F.relu(self.a(x))))).mean(2)
        return self.fc(F.relu(self.c2(F.relu(self.c1(F.relu(self.c0(x)))))).mean(2))


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.a, self.b, self.shortcut = conv(inputs, outputs, 2), conv(outputs, outputs), conv(inputs, outputs, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.b(F.relu(self.a(x))) + self.shortcut(x))


class Gated(nn.Module):
    """A gate by a 1-d convolution over channels (ECA), registered before all other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Conv1d(1, 1, 3, padding=1)
        self.stem, self.one, self.two = nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 8)), Block(8, 8), Block(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(self.stem(x))
        gate = self.gate(x.mean((2, 3))[:, None]).sigmoid()[:, 0, :, None, None]
        return self.two(x * gate).mean((2, 3))


class Waveform(nn.Module):
    """A learned 1-d front end, whose output is the image of a 2-d network."""

    def __init__(self) -> None:
        super().__init__()
        self.front, self.stem = nn.Conv1d(1, 32, 16, 8, 4), nn.Sequential(conv(1, 8), nn.ReLU(), conv(8, 8))
        self.one, self.two = Block(8, 8), Block(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(self.stem(self.front(x)[:, None]))).mean((2, 3))


class Video(nn.Module):
    """Frames in the batch axis, each pooled to a vector, then a 1-d convolution over time: two last maps."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one = nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 8)), Block(8, 8)
        self.time = nn.Sequential(nn.Conv1d(8, 8, 3, 2, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        frames = self.one(self.stem(x.flatten(0, 1))).mean((2, 3))
        return self.time(frames.view(*x.shape[:2], -1).transpose(1, 2)).mean(2)


def test_a_1d_head_is_blurred_over_time_only() -> None:
    model, flat, line = Recurrent().eval(), Smooth(), Smooth(axes=1)
    assert axes(model) == {"before p": 2, "before c1": 1, "before c2": 1, "after c2": 1}
    with torch.no_grad():
        y = model.p(flat(F.relu(model.b(F.relu(model.a(X)))))).mean(2)
        y = F.relu(model.c2(line(F.relu(model.c1(line(F.relu(model.c0(y))))))))
        torch.testing.assert_close(calibrant.smooth(model)(X), model.fc(line(y).mean(2)))
    only = smoothed(calibrant.smooth(model, where="c2"))["before c2"]
    channel = torch.zeros(1, 4, 6).index_fill_(1, torch.tensor([1]), 1.0)
    assert not only(channel)[:, [0, 2, 3]].any()  # nothing of a channel reaches the others


@pytest.mark.parametrize("example", [None, X])
def test_a_gate_that_is_registered_first_does_not_make_the_network_1d(example: Tensor | None) -> None:
    assert axes(Gated(), example=example) == {"before one": 2, "before two": 2, "after two": 2}


def test_networks_for_waveforms_and_for_video() -> None:
    sound, video = torch.randn(2, 1, 256), torch.randn(2, 8, 3, 32, 32)
    assert axes(Waveform(), example=sound) == {"before one": 2, "before two": 2, "after two": 2}
    assert axes(Video(), example=video) == {"before one": 2, "after one": 2, "before time.0": 1, "after time": 1}


class Shared(Recurrent):
    """One activation for maps with different numbers of axes, and a second argument that is required."""

    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    def forward(self, x: Tensor, more: Tensor) -> Tensor:
        return self.act(self.c0(self.act(self.p(self.b(self.a(x)))).mean(2))).mean(2) + more


def test_ambiguous_axes_are_refused() -> None:
    with pytest.raises(InputError, match=r"'act' is called on maps of 1 and 2 axes"):
        calibrant.smooth(Shared(), where="act", example=(X, torch.zeros(1)))
    with pytest.raises(InputError, match=r"convolves over 1 and 2 axes; pass example="):
        calibrant.smooth(Shared(), where="c0")
    with pytest.raises(InputError, match=r"before 'fc' there is shape \(2, 8\), not a feature map"):
        calibrant.smooth(Recurrent(), where="fc")
    assert axes(Shared(), where="c0", example=(X, torch.zeros(1))) == {"before c0": 1}


def test_tokens_are_not_a_map_of_a_2d_network() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.mix = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.mix(self.patches(x).flatten(2).transpose(1, 2)).mean(1)

    with pytest.raises(InputError, match=r"before 'mix' there is shape .*where='after patches'|not a feature map"):
        calibrant.smooth(Tokens(), where="mix")


def test_a_1d_pool_before_a_strided_convolution() -> None:
    """torch adds a fourth axis to 1-d maps for its pools; the trace must connect the map before with the one after."""
    line = lambda stride: nn.Conv1d(4, 4, 3, stride, 1)  # noqa: E731
    model = nn.Sequential(nn.Conv1d(2, 4, 3), line(1), nn.MaxPool1d(2), line(1), nn.AvgPool1d(2), nn.ReLU(), line(2))
    assert axes(model, example=torch.randn(1, 2, 64)) == {"before 2": 1, "before 4": 1}
    assert axes(nn.Sequential(*model, nn.AdaptiveAvgPool1d(1)))["before 7"] == 1


def test_blurpool_blurs_over_the_axes_of_each_stride() -> None:
    model = Recurrent().eval()
    same = blurpool(model, kernel=(1,))
    assert {name: layer.blur.axes for name, layer in blurpooled(same).items()} == {
        "after p": 2, "before c2": 1, "after c2": 1,  # behind the ReLU of c1, which is a function
    }  # fmt: skip
    with torch.no_grad():
        torch.testing.assert_close(same(X), model(X))
        assert torch.equal(unblurpool(blurpool(model))(X), model(X))
