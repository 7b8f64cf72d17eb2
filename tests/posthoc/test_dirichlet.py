"""Dirichlet and matrix scaling: the ODIR objective against scipy, and a known map found again."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import calibrant
from calibrant.errors import InputError
from calibrant.posthoc.dirichlet import Dirichlet, DirichletMap, Matrix
from calibrant.posthoc.shrinkage import content_folds
from calibrant.posthoc.temperature import least_nll

W = torch.tensor([[0.9, 0.2, 0.0], [-0.1, 0.6, 0.1], [0.0, -0.2, 1.1]], dtype=torch.float64)
B = torch.tensor([0.3, -0.4, 0.1], dtype=torch.float64)


def simulate(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Predictions p, and labels drawn from softmax(W ln p + b)."""
    g = torch.Generator().manual_seed(seed)
    log_p = torch.log_softmax(1.5 * torch.randn(n, 3, generator=g, dtype=torch.float64), 1)
    return log_p, torch.multinomial(torch.softmax(log_p @ W.T + B, 1), 1, generator=g)[:, 0]


def test_objective_equals_scipys() -> None:
    log_p, y = simulate(700)
    lambda_, mu, k, n = 0.5, 0.2, 3, 700
    m = Dirichlet(lambda_=lambda_, mu=mu).fit(calibrant.predictions(log_p, y))
    inverse = 1 / least_nll(log_p, y)[0]
    off = ~torch.eye(k, dtype=torch.bool)

    def objective(t: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.from_numpy(t).requires_grad_()
        weight, bias = theta[:9].view(3, 3), theta[9:]
        loss = torch.nn.functional.cross_entropy(log_p @ weight.T + bias, y)
        loss = loss + lambda_ / (k * (k - 1)) * weight[off].square().sum() + mu / k * bias.square().sum()
        loss = loss + (weight.diagonal() - inverse).square().sum() / n
        (g,) = torch.autograd.grad(loss, theta)
        return loss.item(), g.numpy()

    start = np.r_[np.eye(3).ravel(), np.zeros(3)]
    truth = minimize(objective, start, jac=True, method="L-BFGS-B", options={"ftol": 1e-16, "gtol": 1e-10})
    assert m.record.certificate["objective"] == pytest.approx(truth.fun, rel=1e-8)


def test_finds_a_known_dirichlet_map() -> None:
    log_p, y = simulate(30_000)
    m = Dirichlet().fit(calibrant.predictions(log_p, y))
    new, _ = simulate(2000, seed=1)
    truth = torch.softmax(new @ W.T + B, 1)
    away, before = ((q - truth).abs().mean() for q in (torch.softmax(m(new), 1), new.exp()))
    assert float(away) < 0.005 < 0.05 < float(before)
    assert "held_out_nll" in m.record.certificate


def test_matrix_does_not_depend_on_the_constant_in_the_logits() -> None:
    log_p, y = simulate(500)
    shift = torch.randn(500, 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    m = Matrix().fit(calibrant.predictions(log_p, y))
    assert torch.allclose(torch.softmax(m(log_p), 1), torch.softmax(m(log_p + shift), 1), atol=1e-9)


def test_settings_come_in_pairs() -> None:
    with pytest.raises(InputError, match="both lambda_ and mu"):
        Dirichlet(lambda_=1.0)
    assert issubclass(Matrix().map, DirichletMap)


def test_folds_are_stratified() -> None:
    log_p, y = simulate(300)
    fold = content_folds(log_p, y, 3)
    for c in range(3):
        sizes = torch.bincount(fold[y == c], minlength=3)
        assert int(sizes.max() - sizes.min()) <= 1
