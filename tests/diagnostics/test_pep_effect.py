"""PEP Eq. 12–20 against exact Hessians on a tiny net, and traces against dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.diagnostics.pep_effect import pep_effect
from calibrant.errors import InputError

G = torch.Generator().manual_seed(0)
X = torch.randn(9, 3, generator=G, dtype=torch.float64)
Y = torch.arange(9) % 3


def tiny() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def likelihood_of_item(model: nn.Module, i: int):
    """L_i as a function of the flat vector of all parameters."""
    names = [n for n, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]
    sizes = [p.numel() for p in model.parameters()]

    def likelihood(theta: torch.Tensor) -> torch.Tensor:
        parts = (c.view(s) for c, s in zip(theta.split(sizes), shapes, strict=True))
        out = torch.func.functional_call(model, dict(zip(names, parts, strict=True)), (X[i : i + 1],))
        return torch.softmax(out, -1)[0, Y[i]]

    return likelihood


def test_eq_15_and_eq_20_agree_with_exact_hessians_item_by_item() -> None:
    model = tiny()
    theta = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    by_hand = 0.0
    for i in range(len(X)):
        f = likelihood_of_item(model, i)
        laplacian = torch.autograd.functional.hessian(f, theta).trace()
        by_hand += float(laplacian / f(theta))  # Σ_i ΔL_i / L_i
    effect = pep_effect(model, (X, Y), where="all", probes=0)
    assert effect.predict(0.1) == pytest.approx(0.1**2 / 2 * by_hand / len(X), rel=1e-6)


def test_the_measured_gain_follows_the_prediction_for_small_sigma() -> None:
    effect = pep_effect(tiny(), (X, Y), where="all", probes=0, sigmas=(0.02, 0.04), members=3000)
    (_, small), (_, large) = effect.measured
    assert small == pytest.approx(effect.predict(0.02), rel=0.3)  # what 3,000 members can resolve
    assert large / small == pytest.approx(4, rel=0.05)  # B_σ grows as σ²


def test_both_traces_by_probes_cover_the_exact_ones() -> None:
    truth = pep_effect(tiny(), [(X[:4], Y[:4]), (X[4:], Y[4:])], where="all", probes=0)
    found = pep_effect(tiny(), (X, Y), where="all", probes=400, seed=3)
    for name in ("laplacian", "fisher"):
        by_probes, exactly = getattr(found, name), getattr(truth, name)
        assert abs(by_probes.value - exactly.value) < 4 * by_probes.standard_error
    assert found.items == truth.items == 9


def test_batches_may_be_pairs_dicts_or_a_single_pair() -> None:
    single, *others = (
        pep_effect(tiny(), batches, where="all", probes=0, sigmas=(0.1,), members=4)
        for batches in (
            (X, Y),
            [(X[:4], Y[:4], torch.arange(4)), (X[4:], Y[4:], torch.arange(4, 9))],
            [{"x": X, "y": Y}],
        )
    )
    for other in others:
        assert other.items == single.items == 9
        assert other.predict(0.1) == pytest.approx(single.predict(0.1))
        assert other.measured[0] == pytest.approx(single.measured[0])
    with pytest.raises(InputError, match="no batches"):
        pep_effect(tiny(), ())
