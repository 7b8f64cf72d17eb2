"""Ensemble temperature scaling: the weights are scipy's optimum on the simplex, and the certificate bounds the gap."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import calibrant
from calibrant.posthoc.ets import Ets, EtsMap, simplex_mixture


@pytest.mark.parametrize("seed", range(6))
def test_weights_equal_scipys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.beta(*[(3, 1), (1, 1), (0.5, 2)][seed % 3], size=(400, 3))
    a[:, 2] = 0.1
    if seed >= 3:
        a[:, 1] = a[:, 0]  # two components that are one
    w, certificate = simplex_mixture(torch.from_numpy(a))

    def objective(x: np.ndarray) -> float:
        return float(-np.mean(np.log(a @ np.clip(x, 1e-300, None) / np.clip(x, 1e-300, None).sum())))

    truth = min(
        minimize(objective, start, bounds=[(0, 1)] * 3, constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
                 options={"ftol": 1e-14, "maxiter": 1000}).fun
        for start in (np.ones(3) / 3, np.array([0.8, 0.1, 0.1]))
    )  # fmt: skip
    assert float(w.sum()) == pytest.approx(1) and bool((w >= 0).all())
    assert certificate["objective"] <= truth + 1e-9
    assert truth - certificate["objective"] <= 1e-6 and certificate["gap"] < 1e-8


def test_the_mixture_is_what_the_paper_says() -> None:
    m = EtsMap(torch.tensor(2.0).double(), torch.tensor([0.5, 0.3, 0.2]).double())
    z = torch.tensor([[1.0, 3.0, -2.0]]).double()
    naive = 0.5 * torch.softmax(z / 2, 1) + 0.3 * torch.softmax(z, 1) + 0.2 / 3
    assert torch.allclose(torch.softmax(m(z), 1), naive)


def test_label_survives_when_uniform_is_best() -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(500, 4, generator=g, dtype=torch.float64)
    m = Ets().fit(calibrant.predictions(z, torch.randint(4, (500,), generator=g)))
    assert torch.equal(m(z).argmax(1), z.argmax(1))
