"""Towards a target on linear models: the nearest point that all boundaries leave, by a solver of quadratic programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from calibrant.attacks import ATTACKS, Bounds
from calibrant.attacks.field import Field
from calibrant.attacks.polyhedron import candidates, nearest
from calibrant.attacks.task import Task
from tests.attacks.conftest import Victim

MINIMUM = [name for name, attack in ATTACKS.items() if attack.nearest]


def shortest(model: nn.Linear, x: Tensor, target: int, box: tuple[float, float]) -> float:
    """min ‖δ‖ with z_t ≥ z_k for all k inside the box, by SLSQP in float64; infinite where there is no such point."""
    weight, bias = model.weight.detach().double().numpy(), model.bias.detach().double().numpy()
    origin, others = x.double().numpy(), np.delete(np.arange(len(bias)), target)
    a, c = weight[target] - weight[others], bias[target] - bias[others]
    found = minimize(
        lambda delta: 0.5 * delta @ delta,
        np.zeros_like(origin),
        jac=lambda delta: delta,
        bounds=[(box[0] - pixel, box[1] - pixel) for pixel in origin],
        constraints=[{"type": "ineq", "fun": lambda delta: a @ (origin + delta) + c, "jac": lambda delta: a}],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-14},
    )
    return float(np.linalg.norm(found.x)) if found.success else float("inf")


@pytest.mark.parametrize("name", MINIMUM)
@pytest.mark.parametrize(
    ("classes", "size", "box"), [(3, 10, (0, 1)), (5, 4, (0, 1)), (10, 40, (-9, 9)), (20, 40, (0, 1))]
)
def test_the_nearest_point_of_the_target(name: str, classes: int, size: int, box: tuple[float, float]) -> None:
    """Within 1 %, where several boundaries meet, pixels stand at the bounds, or there are more classes than looks."""
    g = torch.Generator().manual_seed(classes)
    model = nn.Linear(size, classes)
    with torch.no_grad():
        model.weight.copy_(torch.randn(classes, size, generator=g))
        model.bias.copy_(0.3 * torch.randn(classes, generator=g))
    x = torch.rand(12, size, generator=g) ** 3
    x[x < 0.05] = 0.0
    targets = (model(x).argmax(-1) + 1 + torch.randint(classes - 1, (12,), generator=g)) % classes
    wanted = torch.tensor([shortest(model, row, int(t), box) for row, t in zip(x, targets, strict=True)])
    short = {"iterations": 100} if name == "cw" else {}
    result = ATTACKS[name](bounds=Bounds(*box), **short).run(model, x, targets=targets)  # type: ignore[arg-type]
    assert bool(torch.isfinite(wanted).any()) and torch.equal(result.success, torch.isfinite(wanted))
    torch.testing.assert_close(result.distance, wanted.float(), rtol=0.01, atol=0)


def test_boundaries_without_a_way_make_no_step_that_is_no_number() -> None:
    """A flat class, one far behind the box, one whose gradient is next to nothing, and two that contradict."""
    origin = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    gradient = torch.tensor([[0.0, 0.0], [-1.0, 0.0], [1e-30, 0.0], [1.0, 0.0]])[:, None].expand(4, 2, 2)
    delta = nearest(origin, torch.tensor([[1.0], [1e9], [3.0], [0.2]]).expand(4, 2), gradient, Bounds())
    moved = origin + delta
    assert bool(torch.isfinite(delta).all()) and bool(((moved >= 0) & (moved <= 1)).all())


def test_more_classes_are_looked_at_only_where_another_one_leads() -> None:
    """Three at a time. Bent, a network misses by classes that were looked at, and a second look would be the first."""
    g = torch.Generator().manual_seed(3)
    x, missed, more = torch.rand(60, 20, generator=g), [], []
    for bent in (nn.Identity(), nn.Tanh()):
        model = nn.Sequential(nn.Linear(20, 40), bent, nn.Linear(40, 15))
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(2 * torch.randn(p.shape, generator=g) / p.shape[-1] ** 0.5)
        field, clean = Field(model, Bounds(-9, 9), torch.float32), model(x).detach()
        task = Task(x, clean.topk(12).indices[:, 11], Bounds(-9, 9), targeted=True)
        point, count = candidates(field, task, clean, 3, torch.zeros(60))
        assert set(count.tolist()) <= {3, 6, 9}
        missed.append(~task.succeeded(field.logits(point)))
        more.append(count > 3)
    assert bool((more[0] & ~missed[0]).any()) and not bool((missed[0] & ~more[0]).any())
    assert bool((missed[1] & ~more[1]).any())


@pytest.mark.parametrize("name", MINIMUM)
def test_a_target_is_as_far_in_every_batch(name: str, victim: Victim) -> None:
    x, targets = victim.x[:20], (victim.y[:20] + 3) % 10
    short = {"iterations": 60} if name == "cw" else {}
    one = ATTACKS[name](bounds=victim.bounds, **short).run(victim.model, x, targets=targets)  # type: ignore[arg-type]
    attack = ATTACKS[name](bounds=victim.bounds, batch=7, **short)  # type: ignore[arg-type]
    other = attack.run(victim.model, x.flip(0), targets=targets.flip(0))
    torch.testing.assert_close(other.distance.flip(0), one.distance, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        assert bool((victim.model(one.adversarial).argmax(-1) == targets)[one.success].all())
    assert float(one.success.float().mean()) > 0.9
