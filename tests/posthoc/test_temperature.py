"""Temperature against scipy's optimum, simulated truth, closed forms and a naive loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor

import calibrant
from calibrant.errors import InputError
from calibrant.posthoc.calibrator import Calibrator
from calibrant.posthoc.crossval import Folds, folds_of, held_out
from calibrant.posthoc.temperature import GRID, Slope, Temperature, _ece_of, least_ece, least_nll


def simulate(n: int, k: int, seed: int = 0, spread: float = 1.5) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    z = spread * torch.randn(n, k, generator=g, dtype=torch.float64)
    return z, torch.multinomial(torch.softmax(z, 1), 1, generator=g)[:, 0]


def oracle(z: Tensor, y: Tensor) -> float:
    """scipy on log T, in float64."""

    def loss(x: float) -> float:
        return float(torch.nn.functional.cross_entropy(z.double() * math.exp(-x), y))

    best = min(np.linspace(-9, 9, 91), key=loss)
    found = minimize_scalar(loss, bounds=(best - 0.3, best + 0.3), method="bounded", options={"xatol": 1e-10})
    return math.exp(found.x)


@pytest.mark.parametrize("truth", [0.002, 0.1, 1.0, 4.18, 5000.0])
@pytest.mark.parametrize(("n", "k"), [(3000, 3), (1500, 50)])
def test_exact_and_near_the_truth_over_seven_decades(truth: float, n: int, k: int) -> None:
    z, y = simulate(n, k)
    T, certificate = least_nll((z * truth).float(), y)
    assert pytest.approx(oracle((z * truth).float(), y), rel=3e-6) == T  # the oracle's own limit: √ε of a flat minimum
    assert pytest.approx(truth, rel=0.12) == T
    assert certificate["sign_change"] and certificate["bound"] is None
    assert certificate["T_low"] <= T <= certificate["T_high"]
    assert certificate["T_high"] / certificate["T_low"] - 1 <= 5.1e-7
    assert certificate["gradient_at_T_low"] >= 0 >= certificate["gradient_at_T_high"]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(-3, 3), k=st.integers(2, 6), n=st.integers(20, 200))
def test_gradient_vanishes_at_the_optimum(seed: int, scale: float, k: int, n: int) -> None:
    """By autograd, which the solver does not use; or the certificate says why there is no optimum."""
    z, y = simulate(n, k, seed)
    z = z * math.exp(scale)
    T, certificate = least_nll(z, y)
    x = torch.tensor(-math.log(T), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(torch.nn.functional.cross_entropy(z * torch.exp(x), y), x)
    if certificate["bound"] is None:
        assert abs(float(slope)) < 1e-6
    else:
        assert "reason" in certificate


def test_derivatives_of_the_docstring_by_naive_loops() -> None:
    """L'(β) = mean[E_p z − z_y], dL'/d log β = β mean Var_p z, members and pooled ones included."""
    z3, y = torch.stack([simulate(6, 3, s)[0] for s in range(2)]), torch.tensor([0, 1, 2, 0, 1, 1])
    beta = 0.7

    def loss(b: float, pooled: bool) -> float:
        total = 0.0
        for i in range(6):
            each = []
            for m in range(2):
                e = [math.exp(b * float(v)) for v in z3[m, i]]
                each.append(e[int(y[i])] / sum(e))
            total += -math.log(sum(each) / 2) if pooled else -(math.log(each[0]) + math.log(each[1])) / 2
        return total / 6

    for pooled in (False, True):
        value, slope = Slope(z3, y, pooled)(math.log(beta))
        h = 1e-4
        first = (loss(beta + h, pooled) - loss(beta - h, pooled)) / (2 * h)
        second = (loss(beta + h, pooled) - 2 * loss(beta, pooled) + loss(beta - h, pooled)) / h**2
        assert value == pytest.approx(first, abs=1e-7)
        assert slope == pytest.approx(beta * second, abs=1e-5)


@pytest.mark.parametrize("members", ["pooled", "each"])
def test_members(members: str) -> None:
    g = torch.Generator().manual_seed(1)
    z, y = simulate(2000, 4)
    zs = 3 * (z + torch.randn(3, 2000, 4, generator=g, dtype=torch.float64))
    T, certificate = least_nll(zs, y, members)

    def loss(x: float) -> float:
        log_p = torch.log_softmax(zs * math.exp(-x), -1)
        if members == "pooled":
            log_p = torch.logsumexp(log_p, 0, keepdim=True) - math.log(3)
        return float(-log_p[:, torch.arange(2000), y].mean())

    found = minimize_scalar(loss, bounds=(-2, 4), method="bounded", options={"xatol": 1e-10})
    assert pytest.approx(math.exp(found.x), rel=3e-6) == T
    assert certificate["nll"] == {"pooled": "of the pooled prediction", "each": "mean of the members'"}[members]
    m = calibrant.fit("temperature", zs, y, members=members)
    assert m(zs).shape == zs.shape


def test_separable_data_say_so_and_get_the_bound() -> None:
    z, _ = simulate(500, 5)
    T, certificate = least_nll(z, z.argmax(1))
    assert T == 1e-6 and certificate["bound"] == "T_low" and "separable" in certificate["reason"]
    m = calibrant.fit("temperature", z, z.argmax(1))
    assert not m.record.guard["ok"] and any("separable" in r for r in m.record.guard["reasons"])
    assert bool(torch.isfinite(torch.softmax(m(z), 1)).all())


def test_anti_informative_and_constant_logits_get_the_other_bound() -> None:
    z, _ = simulate(500, 5)
    T, certificate = least_nll(z, z.argmin(1))
    assert T == 1e6 and certificate["bound"] == "T_high" and "uniform" in certificate["reason"]


def test_labels_at_the_maximum_but_tied_are_not_separable_in_error() -> None:
    """All-equal logits: every T is optimal, and nothing is NaN."""
    m = calibrant.fit("temperature", torch.zeros(50, 3), torch.arange(50) % 3)
    assert bool(torch.isfinite(m(torch.zeros(50, 3))).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_dtype_is_solved_in_float64(dtype: torch.dtype) -> None:
    z, y = simulate(2000, 10)
    low = (2 * z).to(dtype)
    assert least_nll(low, y)[0] == pytest.approx(least_nll(low.double(), y)[0], rel=1e-9)


def test_impossible_classes_and_labels() -> None:
    z, y = simulate(800, 4)
    z = 2 * z
    blocked = z.clone()
    blocked[torch.arange(800), (y + 1) % 4] = -torch.inf
    finite = blocked.clamp_min(-1e5)
    assert least_nll(blocked, y)[0] == pytest.approx(least_nll(finite, y)[0], rel=1e-7)
    blocked[:5] = z[:5]
    blocked[torch.arange(5), y[:5]] = -torch.inf
    T, certificate = least_nll(blocked, y)
    assert certificate["impossible_labels"] == 5 and pytest.approx(least_nll(blocked[5:], y[5:])[0], rel=1e-7) == T
    with pytest.raises(InputError, match="every label is -inf"):
        least_nll(torch.tensor([[0.0, -torch.inf]] * 3), torch.ones(3, dtype=torch.long))


def test_constant_shift_and_scale() -> None:
    z, y = simulate(1000, 6)
    T = least_nll(z, y)[0]
    assert least_nll(z + 1e4 * torch.randn(1000, 1, dtype=torch.float64), y)[0] == pytest.approx(T, rel=1e-6)
    assert least_nll(1e4 * z, y)[0] == pytest.approx(1e4 * T, rel=1e-6)


def test_subsample_start_does_not_change_the_answer() -> None:
    z, y = simulate(40_000, 10)
    z[:: 40_000 * 10 // (1 << 16)] *= 50  # exactly the rows of the subsample mislead it
    assert least_nll(z, y)[0] == pytest.approx(oracle(z, y), rel=3e-6)


@pytest.mark.parametrize("members", [0, 3])
@pytest.mark.parametrize("grouped", [False, True])
def test_refits_of_many_items_are_those_of_fitting_again(members: int, grouped: bool) -> None:
    """One Newton step against the solver on the items that are left, and the guard's figures from both."""
    z, y = simulate(9_000, 40)
    g = torch.Generator().manual_seed(3)
    z = 1.7 * (z if not members else z + torch.randn(members, 9_000, 40, dtype=torch.float64, generator=g))
    p = calibrant.predictions(z.float(), y, group=torch.arange(9_000) // 30 if grouped else None)
    folds = Folds(p, 5, 0)
    quick = [float(m.temperature) for m in Temperature().refits(p, folds.of_item)]  # type: ignore[attr-defined]
    plain = [float(m.temperature) for m in Calibrator.refits(Temperature(), p, folds.of_item)]  # type: ignore[attr-defined]
    assert quick == pytest.approx(plain, rel=5e-5) and quick != plain
    fast, slow = held_out(Temperature(), folds), held_out(Again(), folds)
    assert float(fast.loss.mean()) == pytest.approx(float(slow.loss.mean()), rel=2e-7)
    assert fast.auroc == pytest.approx(slow.auroc, abs=1e-6)


class Again(Temperature):
    """Fits again for each fold."""

    refits = Calibrator.refits


def test_folds_that_move_t_far_are_refitted() -> None:
    z, y = simulate(9_000, 40)
    group = torch.arange(9_000) // 1800
    z[group == 0] *= 20  # without this group, T is another one
    p = calibrant.predictions(z, y, group=group)
    fold = folds_of(p, 5, 0)
    for m, plain in zip(Temperature().refits(p, fold), Calibrator.refits(Temperature(), p, fold), strict=True):
        assert m.summary() == plain.summary()


def test_ece_objective_on_the_papers_grid() -> None:
    """RC §4: the best of {0.01, …, 10} by ECE; every grid point by the metric itself."""
    assert GRID[0] == 0.01 and GRID[1] == 0.02 and GRID[-1] == 10 and len(GRID) == 1000
    z, y = simulate(1500, 5)
    z = 2.5 * z
    T, certificate = least_ece(z, y)
    every = {t: calibrant.evaluate(z / t, y, metrics=["ece"], intervals=False)["ece"].value for t in GRID[100:400]}
    best = min(every, key=lambda t: (every[t], t))
    assert best == T and certificate["ece"] == pytest.approx(every[best], abs=1e-12)
    m = calibrant.fit("temperature", z, y, objective="ece")
    assert float(m.summary()["temperature"]) == T
    assert least_ece(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))[0] == GRID[0], "the smallest of equal ones"


@pytest.mark.parametrize("members, scale, step", [(1, 1.0, 0.0), (1, 60.0, 0.0), (1, 2.0, 1.0), (3, 2.0, 0.0)])
def test_ece_of_many_temperatures_is_the_metric_at_each(members: int, scale: float, step: float) -> None:
    """For several temperatures at once, several members, ties and saturated logits."""
    pairs = [simulate(300, 4, seed=s) for s in range(members)]
    z, y = scale * torch.stack([logits for logits, _ in pairs]), pairs[0][1]
    z = (z / step).round() * step if step else z
    z -= z.amax(-1, keepdim=True)
    found = _ece_of(z[0] if members == 1 else z, y, 15, GRID[20:400:19]).tolist()
    shown = [z / t if members > 1 else z[0] / t for t in GRID[20:400:19]]
    naive = [calibrant.evaluate(s, y, metrics=["ece"], intervals=False)["ece"].value for s in shown]
    assert found == pytest.approx(naive, abs=1e-9)


def test_fixed_temperature_and_bad_settings() -> None:
    """DS A.3 uses T = 1.5."""
    z, y = simulate(100, 3)
    m = calibrant.fit("temperature", z, y, T=1.5)
    assert torch.equal(m(z), z / 1.5) and m.record.certificate["objective"] == "fixed"
    for bad, word in (
        ({"T": -1}, "T=-1"),
        ({"objective": "mse"}, "mse"),
        ({"members": "all"}, "all"),
        ({"t": 2}, "'t'"),
    ):
        with pytest.raises(InputError, match=word):
            calibrant.fit("temperature", z, y, **bad)
    assert Temperature().settings()["objective"] == "nll"
