"""Learning rates and optimisers against torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from calibrant.training.optimiser import Optimiser, Schedule, make_optimiser, state_tensors


def model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def reference_rates(scheduler: type, steps: int, **options: object) -> list[float]:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    made = scheduler(optimiser, **options)
    rates = []
    for _ in range(steps):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        made.step()
    return rates


def test_multistep_is_torchs() -> None:
    ours = Schedule("multistep", milestones=(3, 7), gamma=0.2)
    theirs = reference_rates(torch.optim.lr_scheduler.MultiStepLR, 10, milestones=[3, 7], gamma=0.2)
    assert [ours.factor(i, 1, 10) for i in range(10)] == pytest.approx(theirs)


def test_cosine_is_torchs() -> None:
    theirs = reference_rates(torch.optim.lr_scheduler.CosineAnnealingLR, 12, T_max=12)
    assert [Schedule("cosine").factor(i, 3, 4) for i in range(12)] == pytest.approx(theirs)


def test_warm_up_rises_linearly_to_the_rate_and_stays() -> None:
    schedule = Schedule("constant", warmup=2)
    assert [schedule.factor(i, 5, 10) for i in range(12)] == pytest.approx([(i + 1) / 10 for i in range(10)] + [1, 1])


def test_scaled_keeps_the_shape() -> None:
    whole, half = Schedule("multistep", milestones=(60, 130), gamma=0.2), Schedule("multistep", (30, 65), 0.2)
    assert whole.scaled(0.5) == half
    assert all(whole.factor(2 * i, 1, 200) == half.factor(i, 1, 100) for i in range(100))


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        (Optimiser("sgd", 0.1, 0.9, weight_decay=0.01), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
        (Optimiser("sgd", 0.1, 0.9, nesterov=True), lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True)),
        (Optimiser("sgd", 0.1, 0.0), lambda p: torch.optim.SGD(p, 0.1)),
        (Optimiser("adam", 0.01, weight_decay=0.1), lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.1)),
    ],
)
def test_allocating_the_state_first_changes_nothing(settings: Optimiser, reference: object) -> None:
    a, b = model(), model()
    ours, theirs = make_optimiser(settings, a), reference(b.parameters())  # type: ignore[operator]
    state = set(state_tensors(ours))
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    for _ in range(5):
        for net, optimiser in ((a, ours), (b, theirs)):
            optimiser.zero_grad()
            net(x).square().sum().backward()
            optimiser.step()
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        assert torch.equal(p, q)
    assert set(state_tensors(ours)) == state, "the state is whole before the first step"
