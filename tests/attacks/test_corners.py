"""Inputs in a corner of the bounds, and inputs on the boundary itself: closed forms where a class has no way there."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from calibrant.attacks import ATTACKS, Bounds
from calibrant.attacks.linear import inside

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
    assert bool(result.success) and 0 < float(result.distance) < 1e-6
