"""Vector scaling against scipy's optimum of the same convex function, and simulated truth."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import calibrant
from calibrant.functional import multinomial
from calibrant.posthoc.vector import Vector


def simulate(n: int, weight: Tensor, bias: Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, len(weight), generator=g, dtype=torch.float64)
    return z, torch.multinomial(torch.softmax(z * weight + bias, 1), 1, generator=g)[:, 0]


def nll(z: Tensor, y: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(z, y))


@pytest.mark.parametrize("dense", [384, 1])
def test_least_nll_equals_scipys(dense: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the exact Hessian and by conjugate gradients."""
    monkeypatch.setattr(multinomial, "DENSE", dense)
    z, y = simulate(1500, torch.tensor([0.5, 1.0, 0.2, 0.8]).double(), torch.tensor([0.3, -0.5, 0.0, 0.2]).double())
    m = Vector().fit(calibrant.predictions(z, y))

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        t = torch.from_numpy(x).requires_grad_()
        loss = torch.nn.functional.cross_entropy(z * t[:4] + t[4:], y)
        (g,) = torch.autograd.grad(loss, t)
        return loss.item(), g.numpy()

    found = minimize(objective, np.r_[np.ones(4), np.zeros(4)], jac=True, method="BFGS", options={"gtol": 1e-9})
    assert nll(m(z), y) == pytest.approx(found.fun, abs=2e-7)
    assert m.record.certificate["decrement"] < 1e-8


def test_separable_data_and_an_absent_class_have_a_finite_answer() -> None:
    z, _ = simulate(300, torch.ones(3).double(), torch.zeros(3).double())
    m = Vector().fit(calibrant.predictions(z, z.argmax(1)))
    assert all(bool(torch.isfinite(t).all()) for t in m.tensors().values())
    assert m.record.certificate["anchor_T"] == 1.0
    keep = z.argmax(1) != 2
    y = torch.where(torch.arange(300) % 4 == 0, (z.argmax(1) + 1) % 2, z.argmax(1))
    m = Vector().fit(calibrant.predictions(z[keep], y[keep]))
    assert all(bool(torch.isfinite(t).all()) for t in m.tensors().values())
    assert float(torch.softmax(m(z[keep]), 1)[:, 2].mean()) < 0.01


def test_scale_of_the_logits_does_not_matter() -> None:
    z, y = simulate(800, torch.tensor([0.5, 1.0, 2.0]).double(), torch.zeros(3).double())
    a = Vector().fit(calibrant.predictions(z, y))(z)
    b = Vector().fit(calibrant.predictions(1e4 * z, y))(1e4 * z)
    assert torch.allclose(torch.softmax(a, 1), torch.softmax(b, 1), atol=1e-6)
