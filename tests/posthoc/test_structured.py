"""Structured scaling: the paper's objective against scipy; strong penalties fall back to temperature scaling."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

import calibrant
from calibrant.posthoc.structured import StructuredMatrix, StructuredVector
from calibrant.posthoc.temperature import least_nll


def sample(n: int = 600, k: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(n, k, generator=g, dtype=torch.float64)
    bias = torch.linspace(-1, 1, k).double()
    return z, torch.multinomial(torch.softmax(z / 2 + bias, 1), 1, generator=g)[:, 0]


def naive_features(z: Tensor, y: Tensor) -> Tensor:
    """log[(1 − ε) softmax(z/T) + ε/K], entry by entry."""
    T, n, k = least_nll(z, y)[0], len(z), z.shape[1]
    out = torch.empty_like(z)
    for i in range(n):
        e = [math.exp(float(v) / T) for v in z[i] - z[i].max()]
        for j in range(k):
            out[i, j] = math.log(n / (n + 1) * e[j] / sum(e) + 1 / (n + 1) / k)
    return out


@pytest.mark.parametrize("matrix", [True, False])
def test_objective_equals_scipys(matrix: bool) -> None:
    z, y = sample()
    n, k = z.shape
    x = naive_features(z, y)
    m = (StructuredMatrix() if matrix else StructuredVector()).fit(calibrant.predictions(z, y))
    size = k * k if matrix else k
    off = ~torch.eye(k, dtype=torch.bool)

    def objective(t: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.from_numpy(t).requires_grad_()
        delta, bias = theta[:size], theta[size:]
        if matrix:
            full = delta.view(k, k)
            logits = x + x @ full.T + bias
            v, penalty = full.diagonal(), k * (k - 1) / n * full[off].square().sum()
        else:
            logits, v, penalty = x * (1 + delta) + bias, delta, torch.zeros(())
        loss = torch.nn.functional.cross_entropy(logits, y) + penalty
        loss = loss + k / n * (bias.square().sum() + v.square().sum())
        (g,) = torch.autograd.grad(loss, theta)
        return loss.item(), g.numpy()

    options = {"ftol": 1e-16, "gtol": 1e-10, "maxiter": 2000}
    truth = minimize(objective, np.zeros(size + k), jac=True, method="L-BFGS-B", options=options)
    assert m.record.certificate["objective"] == pytest.approx(truth.fun, rel=1e-8)


def test_a_strong_penalty_is_temperature_scaling() -> None:
    z, y = sample()
    T = least_nll(z, y)[0]
    for calibrator in (StructuredVector(penalty=1e8), StructuredMatrix(penalty=1e8)):
        p = torch.softmax(calibrator.fit(calibrant.predictions(z, y))(z), 1)
        assert float((p - torch.softmax(z / T, 1)).abs().max()) < 2 / len(z)  # the uniform share


def test_cross_validation_weakens_the_penalty_for_informative_data() -> None:
    z, y = sample(4000)
    m = StructuredMatrix(penalty=None).fit(calibrant.predictions(z, y))
    assert m.record.certificate["penalty"] < 10
    held_out = m.record.certificate["held_out_nll"]
    assert min(held_out, key=held_out.get) == f"{m.record.certificate['penalty']:g}"


def test_degrees_are_what_the_ridge_leaves_free() -> None:
    z, y = sample()
    free, held = (StructuredMatrix(penalty=m).fit(calibrant.predictions(z, y)).degrees for m in (1e-6, 1e8))
    # 20 numbers; adding one constant to all logits, with each of x and the bias, changes nothing: 5 of them
    assert free == 15 + 1 and held == 1
