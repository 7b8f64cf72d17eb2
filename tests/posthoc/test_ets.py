"""Ensemble temperature scaling: the weights are the optimum on the simplex, and the certificate proves it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import calibrant
from calibrant.posthoc.ets import Ets, EtsMap, simplex_mixture


@pytest.mark.parametrize("seed", range(9))
def test_no_other_weights_are_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    if seed < 6:
        a = rng.beta(*[(3, 1), (1, 1), (0.5, 2)][seed % 3], size=(400, 3))
    else:
        a = rng.beta(8, 1, size=({6: 200, 7: 400, 8: 150}[seed], 3))
        a[0] = 1e-20  # one item is confidently wrong, and only the uniform part explains it
    a[:, 2] = 0.1
    if 3 <= seed < 6:
        a[:, 1] = a[:, 0]  # two components that are one
    w, certificate = simplex_mixture(torch.from_numpy(a))

    u = np.linspace(0, 1, 101)
    grid = np.array([(i, j, max(1 - i - j, 0)) for i in u for j in u if i + j <= 1])
    assert float(w.sum()) == pytest.approx(1) and bool((w >= 0).all())
    assert certificate["objective"] <= -np.log(a @ grid.T).mean(0).min() + 1e-9
    # by convexity no weights are better by more than the steepest descent towards a corner of the simplex
    gap = max(float(np.mean(a[:, j] / (a @ w.numpy()))) for j in range(3)) - 1
    assert gap < 1e-7 and certificate["gap"] == pytest.approx(gap, abs=1e-12)


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
