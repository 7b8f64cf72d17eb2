"""Expected sharpness and V[L] (SS Eq. 14–28) against closed forms and naive sums."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from calibrant.diagnostics import Sharpness, loss_sharpness
from calibrant.ensembles import MCDropout
from calibrant.errors import InputError, NotApplicableError
from calibrant.functional.noise import member_seed

RNG = torch.Generator().manual_seed(0)


def test_naive_sums() -> None:
    log_p = -torch.rand(7, 5, generator=RNG, dtype=torch.float64)
    found = Sharpness(log_p)
    losses = [
        -sum(math.log(sum(math.exp(log_p[2 * g + j, i]) for j in range(2)) / 2) for i in range(5)) / 5 for g in range(3)
    ]
    assert found.losses(2).tolist() == pytest.approx(losses, rel=1e-12), "the seventh mask is left out"
    mean = sum(losses) / 3
    variance = sum((v - mean) ** 2 for v in losses) / 2
    assert found.variance(2).value == pytest.approx(variance, rel=1e-9)
    assert found.expected(2) == pytest.approx(sum(max(v, mean) - mean for v in losses) / 3, rel=1e-9)
    total = 0.0
    for i in range(5):
        p = [math.exp(log_p[j, i]) for j in range(7)]
        mu = sum(p) / 7
        total += sum((v - mu) ** 2 for v in p) / 6 / mu**2
    assert found.predicted_variance(3) == pytest.approx(total / 3 / 5**2, rel=1e-9)


def test_sharpness_of_a_gaussian_loss_is_its_standard_deviation_over_root_two_pi() -> None:
    """Eq. 21 with the c that Eq. 28 drops."""
    s = 0.3
    log_p = torch.randn(200_000, 1, generator=RNG, dtype=torch.float64) * s
    assert Sharpness(log_p).expected() == pytest.approx(s / math.sqrt(2 * math.pi), rel=0.01)


def test_the_interval_covers_the_variance_of_a_gaussian_loss() -> None:
    draws = torch.randn(400, 30, 1, generator=RNG, dtype=torch.float64)
    found = [Sharpness(each).variance() for each in draws]
    assert 0.92 <= sum(e.low <= 1 <= e.high for e in found) / len(found) <= 0.98  # type: ignore[operator]


class Dropped(nn.Module):
    """Logits (a·m/(1 − q), 0) with m ∈ {0, 1}: p of class 0 is σ(a/(1 − q)) or ½."""

    def __init__(self, a: float, q: float) -> None:
        super().__init__()
        self.scale, self.drop = nn.Parameter(torch.tensor(a)), nn.Dropout(q)

    def forward(self, x: Tensor) -> Tensor:
        z = self.drop(self.scale * x)
        return torch.cat([z, torch.zeros_like(z)], 1)


def test_a_network_whose_loss_is_known() -> None:
    """V[L_1] of |D| independent items is V/|D|, the loss of one being ln 2 with q, else −ln σ(a/(1 − q))."""
    a, q, items = 0.5, 0.25, 8
    x, y = torch.ones(items, 1), torch.zeros(items, dtype=torch.long)
    model = Dropped(a, q)
    state, mode = torch.get_rng_state(), model.drop.training
    found = loss_sharpness(model, [(x[:5], y[:5]), (x[5:], y[5:])], passes=1500)
    assert torch.equal(state, torch.get_rng_state()) and model.drop.training == mode
    kept = math.log1p(math.exp(-a / (1 - q)))
    closed = q * (1 - q) * (math.log(2) - kept) ** 2 / items
    e = found.variance()
    assert e.value == pytest.approx(closed, rel=0.1)
    assert float(found.losses().mean()) == pytest.approx(q * math.log(2) + (1 - q) * kept, rel=0.01)
    members = MCDropout(model, 3, seed=member_seed(0, 0)).members(x[:5])
    by_members = torch.log_softmax(members.double(), -1)[:, :, 0]
    torch.testing.assert_close(found.log_p[:3, :5], by_members)


def test_refusals() -> None:
    x, y = torch.ones(2, 1), torch.zeros(2, dtype=torch.long)
    with pytest.raises(NotApplicableError, match="Linear has no dropout"):
        loss_sharpness(nn.Linear(1, 2), (x, y))
    with pytest.raises(InputError, match="at least 2"):
        loss_sharpness(Dropped(1.0, 0.5), (x, y), passes=1)
    with pytest.raises(InputError, match="4 passes make 1 ensembles of 3; use 6 or more"):
        loss_sharpness(Dropped(1.0, 0.5), (x, y), passes=4).variance(3)
