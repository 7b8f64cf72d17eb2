"""The multinomial solver against scipy's optimum, in both precisions, dense and by Hessian products."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from calibrant.functional import multinomial
from calibrant.functional.designs import Design, Diagonal, Full, Shared
from calibrant.functional.multinomial import minimise


def data(n: int = 400, k: int = 4) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.log_softmax(2 * torch.randn(n, k, generator=g, dtype=torch.float64), 1)
    y = torch.multinomial(torch.softmax(0.6 * x, 1), 1, generator=g)[:, 0]
    return x, y


def scipys(design: Design, y: Tensor, ridge: Tensor, centre: Tensor, lower: float | None = None) -> float:
    def objective(t: np.ndarray) -> tuple[float, np.ndarray]:
        theta = torch.from_numpy(t).requires_grad_()
        loss = torch.nn.functional.cross_entropy(design(theta), y) + (ridge * (theta - centre) ** 2).sum()
        (gradient,) = torch.autograd.grad(loss, theta)
        return loss.item(), gradient.numpy()

    bounds = None if lower is None else [(lower, None)] * len(centre)
    options = {"ftol": 1e-16, "gtol": 1e-10, "maxiter": 5000, "maxfun": 50000}
    return float(minimize(objective, centre.numpy(), jac=True, method="L-BFGS-B", bounds=bounds, options=options).fun)


DESIGNS: dict[str, tuple[Callable[[Tensor], Design], Tensor]] = {
    "diagonal": (Diagonal, torch.cat([torch.ones(4), torch.zeros(4)]).double()),
    "full": (lambda x: Full(x, 4), torch.cat([torch.eye(4).flatten(), torch.zeros(4)]).double()),
    "shared": (lambda x: Shared(x, torch.tensor([-4.0, -2.0, -1.0]).double()), torch.ones(4).double()),
}


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("mixed", [True, False])
def test_least_objective_equals_scipys(name: str, dense: bool, mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multinomial, "DENSE", 1000 if dense else 0)
    monkeypatch.setattr(multinomial, "SMALL", 0 if mixed else 1 << 30)
    make, centre = DESIGNS[name]
    x, y = data()
    ridge = torch.linspace(0.001, 0.02, len(centre)).double()
    found = minimise(make(x), y, ridge, centre)
    truth = scipys(make(x), y, ridge, centre)
    assert found.value == pytest.approx(truth, rel=1e-8)
    assert found.value - truth <= max(found.decrement, 1e-12) * 2 + 1e-10  # the certificate holds


@pytest.mark.parametrize("name", DESIGNS)
def test_hessian_moments_and_adjoint_match_the_operator(name: str) -> None:
    make, centre = DESIGNS[name]
    x, _ = data(50)
    design = make(x)
    matrix = torch.autograd.functional.jacobian(design, centre)  # [N, K, P]
    p = torch.softmax(design(centre), 1)
    r = torch.randn(50, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(design.adjoint(r), torch.einsum("nkp,nk->p", matrix, r))
    weight = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
    hessian = torch.einsum("nip,nij,njq->pq", matrix, weight, matrix)
    assert torch.allclose(design.hessian(p), hessian, atol=1e-10)
    assert torch.equal(design.flat(design.rows(centre)), centre)
    m = design.moments(p)
    diagonal = design.flat(m.weight[:, None] * (m.variance + m.mean.square()))
    assert torch.allclose(diagonal, hessian.diagonal(), atol=1e-10)


@pytest.mark.parametrize("mixed", [True, False])
def test_bounds_bind_where_the_free_optimum_breaks_them(mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multinomial, "SMALL", 0 if mixed else 1 << 30)
    x, y = data()
    make, centre = DESIGNS["shared"]
    ridge = torch.full((4,), 1e-4, dtype=torch.float64)
    lower = torch.full((4,), 0.7, dtype=torch.float64)  # the truth has slope 0.6 everywhere
    found = minimise(make(x), y, ridge, centre, lower=lower)
    assert bool((found.theta >= lower).all()) and bool((found.theta == lower).any())
    assert found.value == pytest.approx(scipys(make(x), y, ridge, centre, 0.7), rel=1e-8)
    assert found.gradient < 1e-4 and found.decrement < 1e-8


def test_one_function_for_all_classes_is_piecewise_linear_with_these_slopes() -> None:
    knots, theta = [-4.0, -2.0, -1.0], [0.5, 2.0, 1.0, 3.0]
    x, _ = data(30)

    def g(v: float) -> float:
        cuts = [-math.inf, *knots, math.inf]
        origin = [knots[0], *knots]
        return sum(t * (min(max(v, a), b) - o) for t, a, b, o in zip(theta, cuts, cuts[1:], origin, strict=False))

    naive = torch.tensor([[g(float(v)) for v in row] for row in x], dtype=torch.float64)
    assert torch.allclose(Shared(x, torch.tensor(knots).double())(torch.tensor(theta).double()), naive)
