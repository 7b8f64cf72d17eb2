"""Diagnostics of a network on a CUDA device say what they say on a CPU, from batches that are on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks import FGSM
from calibrant.diagnostics import (
    feature_fourier,
    feature_neighbours,
    feature_variance,
    hessian_density,
    hessian_spectrum,
    hessian_trace,
    loss_landscape,
    loss_sharpness,
    overfitting,
    pep_effect,
    pep_items,
    under_attack,
)
from calibrant.diagnostics.landscape import plane_through
from calibrant.ensembles.pep import PEP

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = torch.device("cuda")
RNG = torch.Generator().manual_seed(0)
X, Y = torch.rand(24, 3, 8, 8, generator=RNG, dtype=torch.float64), torch.arange(24) % 4
BATCHES = [(X[:12], Y[:12]), (X[12:], Y[12:])]


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first, second, last = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1), nn.Linear(96, 4)
    layers = (first, nn.BatchNorm2d(6), nn.GELU(), nn.Dropout(0.3), second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return nn.Sequential(*layers, last).double()


def without_dropout(model: nn.Module) -> dict[str, Tensor]:
    """What does not depend on masks, which a GPU draws differently."""
    plain: Any = {"dropout": False}
    spectrum: Any = hessian_spectrum(model, BATCHES, k=2, vectors=True, weight_decay=0.01, **plain)
    power = hessian_spectrum(model, BATCHES, method="power", tol=1e-9, kind="gauss_newton", chunk=5, **plain)
    effect = pep_effect(model, BATCHES, probes=3)
    plane = plane_through(model, network(1).state_dict(), network(2).to(DEVICE).state_dict())
    quiet: Any = copy.deepcopy(model)
    quiet[3].p = 0.0
    return {
        "spectrum": spectrum.eigenvalues,
        "vectors": spectrum.vectors.abs(),
        "power": power.eigenvalues,
        "density": hessian_density(model, BATCHES, steps=6, probes=2, **plain).nodes,
        "trace": torch.tensor(hessian_trace(model, BATCHES, products=9, kind="fisher", **plain).interval()),
        "landscape": loss_landscape(model, BATCHES, points=3).loss,
        "plane": loss_landscape(model, BATCHES, plane, points=3).each,
        "variance": feature_variance(quiet, BATCHES, passes=2).data,
        "fourier": feature_fourier(model, BATCHES, dropout=False).log_amplitude["0"],
        "neighbours": feature_neighbours(model, BATCHES).covariance["4"],
        "attack": under_attack(model, BATCHES, FGSM(epsilon=0.03)).survived.double(),
        "effect": torch.tensor([effect.laplacian.value, effect.fisher.value]),
    }


def test_the_numbers_are_those_of_the_cpu() -> None:
    expected, found = without_dropout(network()), without_dropout(network().to(DEVICE))
    for name, value in found.items():
        assert value.device.type == "cpu", name
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=1e-5, msg=f"{name} differs")


def test_with_masks_and_perturbations_generators_and_weights_are_left_as_found() -> None:
    model = network().to(DEVICE)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    states = [torch.get_rng_state(), torch.cuda.get_rng_state()]
    assert hessian_spectrum(model, BATCHES).largest.min() > 0
    assert float(loss_sharpness(model, BATCHES, passes=6).losses(2).var()) > 0
    assert float(feature_variance(model, BATCHES, passes=3).of("model").max()) > 0
    masked = loss_landscape(model, BATCHES, points=3, masks=2).each
    assert masked.shape == (2, 3, 3, 2) and not torch.equal(masked[0], masked[1])
    items = pep_items(PEP(model, 0.05, 4), BATCHES)
    assert len(items.gain) == 24 and torch.isfinite(items.members).all()
    (row,) = overfitting(model, {1: model.state_dict()}, *(BATCHES,) * 3, members=3)
    assert row.overfitting == pytest.approx(0)
    assert all(map(torch.equal, states, [torch.get_rng_state(), torch.cuda.get_rng_state()]))
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_tf32_that_the_user_has_chosen_is_off_inside_and_on_again_afterwards() -> None:
    x, y = X.float(), Y
    exact = hessian_spectrum(network().float(), (x, y), dropout=False).largest
    backends: Any = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "tf32"
        found = hessian_spectrum(network().float().to(DEVICE), (x, y), dropout=False).largest
        assert all(backend.fp32_precision == "tf32" for backend in backends)
    finally:
        for backend, own in zip(backends, before, strict=True):
            backend.fp32_precision = own
    torch.testing.assert_close(found, exact, atol=0, rtol=2e-5)
