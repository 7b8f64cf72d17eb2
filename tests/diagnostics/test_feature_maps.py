"""Feature-map variance and Fourier amplitudes (SS §2.2) against closed forms and naive sums."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import calibrant
from calibrant.diagnostics import feature_fourier, feature_variance
from calibrant.diagnostics.feature_fourier import spectrum
from calibrant.diagnostics.feature_maps import stage_ends
from calibrant.errors import InputError, UnknownNameError
from calibrant.nn import build

RNG = torch.Generator().manual_seed(0)
X, Y = torch.randn(6, 3, 8, 8, generator=RNG), torch.zeros(6, dtype=torch.long)


class Ending(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def test_the_variance_of_dropout_and_of_points_is_the_known_one() -> None:
    """Dropout at rate p of the constant 1 is 0 or 1/(1 − p): standard deviation √(p/(1 − p))."""
    model = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Dropout(0.2), Ending())
    nn.init.zeros_(model[0].weight), nn.init.ones_(model[0].bias)
    found = feature_variance(model, [(X, Y), (X, Y)], passes=400)
    assert found.layers == ("0", "1") and found.sizes == {"0": (8, 8), "1": (8, 8)} and found.data.shape == (2, 12)
    assert found.data[0].tolist() == [0] * 12 and found.model[0].tolist() == [0] * 12
    assert float(found.model[1].mean()) == pytest.approx(math.sqrt(0.2 / 0.8), rel=0.01)
    assert float(found.data[1].mean()) == pytest.approx(math.sqrt(0.2 / 0.8), rel=0.1)


def test_data_uncertainty_is_averaged_over_channels_of_one_pass() -> None:
    model = nn.Sequential(nn.Identity(), Ending(), nn.Linear(3, 2))
    found = feature_variance(model, (X, Y))
    by_hand = [sum(float(X[i, c].double().std()) for c in range(3)) / 3 for i in range(6)]
    assert found.model is None and found.data[0].tolist() == pytest.approx(by_hand)


def test_smoothing_layers_are_seen_and_reduce_the_variance() -> None:
    model = build("resnet18", classes=10, in_channels=3, size=(16, 16), dropout=0.3)
    images = torch.randn(2, 3, 16, 16, generator=RNG), torch.zeros(2, dtype=torch.long)
    state, modes = torch.get_rng_state(), [m.training for m in model.modules()]
    plain = feature_variance(model, images, passes=2)
    smooth = feature_variance(calibrant.smooth(model), images, passes=2)
    assert [name for name in plain.layers if "layer" in name] == [f"layer{i}.{j}" for i in (1, 2, 3, 4) for j in (0, 1)]
    ends = dict(zip(smooth.layers, smooth.model.mean(1).tolist(), strict=True))
    first = next(name for name in ends if name.startswith(("before", "after")))
    assert ends[first] < 0.7 * float(plain.model[plain.layers.index("layer1.1")].mean())
    assert torch.equal(state, torch.get_rng_state()) and modes == [m.training for m in model.modules()]
    assert not any(m._forward_hooks for m in model.modules())


def test_parseval() -> None:
    power = spectrum(X)
    torch.testing.assert_close(power.sum((1, 2)), X.double().square().sum((2, 3)).mean(1))


def test_the_diagonal_of_a_wave_is_its_frequency() -> None:
    """cos(2π·2(i + j)/8) holds the frequency π/2 on the diagonal and no other."""
    i = torch.arange(8.0)
    wave = torch.cos(2 * math.pi * 2 * (i[:, None] + i) / 8).expand(2, 3, 8, 8)
    model = nn.Sequential(nn.Identity(), Ending(), nn.Linear(3, 2))
    found = feature_fourier(model, (wave, torch.zeros(2)))
    amplitude = found.log_amplitude["0"].exp()
    assert found.frequencies("0").tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert amplitude[:, 2].tolist() == pytest.approx([4, 4])  # half of Σ cos² = 32 at ±f each, orthonormal: √16
    assert float(amplitude[:, [0, 1, 3, 4]].max()) < 1e-6


def test_stage_ends_leave_the_stem_out() -> None:
    imagenet = {
        "conv1": (112, 112),
        "maxpool": (56, 56),
        "layer1.0": (56, 56),
        "layer2.0": (28, 28),
        "layer2.1": (28, 28),
    }
    assert stage_ends(imagenet) == ["layer1.0", "layer2.1"]
    assert stage_ends({"a": (8, 8), "b": (4, 4)}) == ["a", "b"]


def test_refusals_name_the_layer_or_the_network() -> None:
    model = build("resnet18", classes=10, in_channels=3, size=(32, 32))
    images = torch.randn(2, 3, 32, 32), torch.zeros(2, dtype=torch.long)
    with pytest.raises(UnknownNameError, match="unknown layer 'layer1.5'; did you mean 'layer1"):
        feature_variance(model, images, layers=["layer1.5"])
    for diagnostic in (feature_variance, feature_fourier):
        with pytest.raises(InputError, match="Sequential has no feature maps"):
            diagnostic(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), (X, Y))
    with pytest.raises(InputError, match="at least 2"):
        feature_variance(nn.Sequential(nn.Conv2d(3, 3, 1), nn.Dropout(), Ending()), (X, Y), passes=1)
