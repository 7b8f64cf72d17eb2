"""Inputs in a corner of the bounds, at the boundary itself, or in half precision, where steps are coarse."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks import ATTACKS, Bounds
from calibrant.attacks.linear import inside
from tests.attacks.conftest import Victim

MINIMUM = [name for name, attack in ATTACKS.items() if attack.nearest]


def linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    model = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        model.weight.copy_(torch.tensor(weight))
        model.bias.copy_(torch.tensor(bias))
    return model


@pytest.mark.parametrize("name", MINIMUM)
@pytest.mark.parametrize("corner", [0.0, 0.01])
def test_a_boundary_behind_the_bounds_is_not_the_nearest(name: str, corner: float) -> None:
    """Class 1 would be a hundredth away, or two, but outside; class 2 is what can be reached."""
    model = linear([[0.0, 0.0], [-10.0, -10.0], [1.0, 0.5]], [0.0, -0.1, -0.3])
    result = ATTACKS[name]().run(model, torch.full((1, 2), corner))
    assert bool(result.success)
    assert float(result.distance) == pytest.approx((0.3 - 1.5 * corner) / 1.25**0.5, rel=1e-3)


def test_how_far_is_infinite_where_there_is_no_way() -> None:
    """Two items; a flat class, one that is blocked before its boundary, one in reach; and nothing but the former."""
    origin, gradient = torch.full((2, 2), 0.1), torch.tensor([[0.0, 0.0], [-1.0, -1.0], [1.0, 0.0]])
    height = torch.tensor([[0.1, 0.1], [0.3, 0.3], [0.5, 2.0]])
    delta, far = inside(origin, height, gradient[:, None].expand(3, 2, 2), Bounds())
    torch.testing.assert_close(far, torch.tensor([0.5, torch.inf]))
    torch.testing.assert_close(delta[0], torch.tensor([0.5, 0.0]))


@pytest.mark.parametrize("name", MINIMUM)
@pytest.mark.parametrize("reference", [{}, {"labels": torch.ones(1).long()}, {"targets": torch.zeros(1).long()}])
def test_a_tie_is_left_by_the_shortest_step(name: str, reference: dict[str, Tensor]) -> None:
    """Both logits are equal to the last bit: no success, but no model without a gradient either."""
    model = linear([[1.0, -1.0, 2.0], [-1.0, 1.0, 2.0]], [0.0, 0.0])
    result = ATTACKS[name]().run(model, torch.tensor([[0.5, 0.5, 0.3]]), **reference)
    assert bool(result.success) and 0 < float(result.distance) < 1e-5  # what rounding may take back, and no more


@pytest.mark.parametrize("name", MINIMUM)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_distance_of_inputs_in_half_precision_is_that_of_what_is_handed_out(
    name: str, dtype: torch.dtype, victim: Victim
) -> None:
    """A pixel next to one is known to 1/256 in bfloat16: rounding moves it farther than some attacks do."""
    model, x = copy.deepcopy(victim.model).to(dtype), victim.x[:12].to(dtype)
    labels = torch.cat([(victim.y[:2] + 1) % 10, victim.y[2:12]])  # two are wrong from the start
    attack = ATTACKS[name](bounds=victim.bounds, **({"iterations": 40} if name == "cw" else {}))  # type: ignore[arg-type]
    result = attack.run(model, x, labels)
    assert result.adversarial.dtype == dtype and bool((result.distance[:2] == 0).all())
    pixel, origin = victim.bounds.pixels(result.adversarial.double()), victim.bounds.pixels(x.double())
    measured = torch.linalg.vector_norm((pixel - origin).flatten(1), attack.norm, dim=1).float()
    found = result.success & (result.distance > 0)
    assert bool(found.any())
    torch.testing.assert_close(result.distance[found], measured[found], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", MINIMUM)
def test_inputs_at_the_boundary_of_two_classes_flip_alone_too(name: str) -> None:
    """The logits' range is nothing there, and a row alone is rounded by another kernel than any batch."""
    wrong = 0
    for seed in (10, 56, 57, 127):
        g = torch.Generator().manual_seed(seed)
        model = nn.Sequential(nn.Linear(40, 16), nn.ReLU(), nn.Linear(16, 2))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=g))
            x = torch.rand(60, 40, generator=g)
            found = ATTACKS["deepfool"]().run(model, x)
            near = 1 + 6e-4 * (2 * torch.rand(60, 1, generator=g) - 1)
            x = torch.where(found.success[:, None], (x + near * (found.adversarial - x)).clamp(0, 1), x)
            own = model(x).argmax(-1)
            short = {"iterations": 40} if name == "cw" else {}
            result = ATTACKS[name](**short).run(model, x, own)  # type: ignore[arg-type]
            alone = torch.cat([model(row[None]) for row in result.adversarial]).argmax(-1)
        assert bool(result.success[found.success].all())
        wrong += int((alone == own)[result.success].sum())
    assert wrong == 0
