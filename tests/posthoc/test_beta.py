"""Beta calibration: the bounded optimum is that of scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import calibrant
from calibrant.posthoc.beta import Beta, BetaMap


def scipys(p: np.ndarray, y: np.ndarray, ridge: float) -> tuple[float, np.ndarray]:
    features = np.stack([np.log(p), -np.log1p(-p), np.ones_like(p)], 1)

    def objective(t: np.ndarray) -> tuple[float, np.ndarray]:
        eta = features @ t
        d = t - np.array([1.0, 1.0, 0.0])
        value = np.sum(np.logaddexp(0, eta) - y * eta) + ridge * d @ d
        return value, features.T @ (1 / (1 + np.exp(-eta)) - y) + 2 * ridge * d

    found = minimize(
        objective, np.ones(3), jac=True, method="L-BFGS-B", bounds=[(0, None), (0, None), (None, None)],
        options={"ftol": 1e-15, "gtol": 1e-9},
    )  # fmt: skip
    return float(found.fun), found.x


@pytest.mark.parametrize("kind", ["free", "a at zero", "both at zero"])
def test_bounded_optimum_equals_scipys(kind: str) -> None:
    g = torch.Generator().manual_seed(0)
    p = torch.rand(600, generator=g, dtype=torch.float64).clamp(0.01, 0.99)
    eta = {
        "free": 0.6 * torch.log(p) - 1.4 * torch.log1p(-p) + 0.2,
        "a at zero": -0.3 * torch.log(p) - 1.4 * torch.log1p(-p) - 0.5,
        "both at zero": -1.0 * torch.log(p) + 0.5 * torch.log1p(-p),
    }[kind]
    y = (torch.rand(600, generator=g) < torch.sigmoid(eta)).long()
    m = Beta(ridge=0.5).fit(calibrant.predictions(probs=torch.stack([1 - p, p], 1), labels=y))
    assert isinstance(m, BetaMap)
    _, theta = scipys(p.numpy(), y.numpy().astype(float), 0.5)
    assert np.array([float(m.a[1]), float(m.b[1]), float(m.c[1])]) == pytest.approx(theta, abs=2e-4)
    assert kind == "free" or float(m.a[1]) == 0.0
