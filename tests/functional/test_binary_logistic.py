"""Batched binary fits against scipy, column by column."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize

from calibrant.functional.binary_logistic import fit_columns


def test_every_column_is_at_scipys_optimum_whatever_the_scale_of_its_features() -> None:
    g = torch.Generator().manual_seed(0)
    s = torch.randn(300, 3, generator=g, dtype=torch.float64) * torch.tensor([1.0, 100.0, 0.01])
    t = torch.rand(300, 3, generator=g, dtype=torch.float64)
    ridge, centre = torch.tensor([0.1, 0.2]).double(), torch.tensor([1.0, 0.0]).double()
    fits = fit_columns((s, torch.ones_like(s)), t, ridge, centre)
    for c in range(3):

        def objective(x: np.ndarray, c: int = c) -> float:
            eta = x[0] * s[:, c].numpy() + x[1]
            prior = ridge.numpy() @ (x - centre.numpy()) ** 2
            return float(np.sum(np.logaddexp(0, eta) - t[:, c].numpy() * eta) + prior)

        truth = minimize(
            objective, fits.theta[c].numpy(), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12}
        )
        assert abs(float(fits.value[c]) - truth.fun) < 1e-8 * abs(truth.fun)


def test_a_held_parameter_stays() -> None:
    s = torch.randn(100, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    free, start = torch.tensor([[False, True]]), torch.tensor([[0.5, 0.0]]).double()
    fits = fit_columns(
        (s, torch.ones_like(s)),
        (s > 0).double(),
        torch.ones(2).double(),
        torch.zeros(2).double(),
        start=start,
        free=free,
    )
    assert float(fits.theta[0, 0]) == 0.5 and float(fits.theta[0, 1]) != 0.0
