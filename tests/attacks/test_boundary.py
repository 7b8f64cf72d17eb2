"""The search for the boundary on the way to a success: every item its own curve, with a root that is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from calibrant.attacks.boundary import _root

N = 200
g = torch.Generator().manual_seed(0)
AT = 0.9 + 0.099 * torch.rand(N, generator=g, dtype=torch.float64)  # where the clearance is zero
FLAT = 10 ** (-1.5 * torch.rand(N, generator=g, dtype=torch.float64))  # slope there, of that of the chord
POWER = 2.0 + 2 * torch.rand(N, generator=g, dtype=torch.float64)


def curves(rows: Tensor) -> Callable[[Tensor], Tensor]:
    """From −1 at the origin: every other one steep at first and flat at its root, the rest steepest there."""

    def clearance(t: Tensor) -> Tensor:
        u = t / AT[rows] - 1
        bent = FLAT[rows] * u - (1 - FLAT[rows]) * (-u).clamp_min(0) ** POWER[rows]
        return torch.where(rows % 2 == 0, bent, torch.sign(u) * u.abs().sqrt())

    return clearance


def found(items: Tensor) -> Tensor:
    ends = torch.zeros(len(items), dtype=torch.float64), torch.ones(len(items), dtype=torch.float64)
    below, above = (curves(items)(end) for end in ends)
    return _root(lambda t, rows: curves(items[rows])(t), *ends, below, above, above > 0, torch.zeros_like(above))


def test_the_root_is_found_where_the_margin_is_flat_or_steep_there() -> None:
    beyond = found(torch.arange(N)) / AT - 1
    assert bool((beyond >= 0).all())
    assert float(beyond.max()) < 2e-3 and float(beyond.median()) < 2e-4


@pytest.mark.parametrize("some", [[3], [199, 0, 7], list(range(0, N, 3))])
def test_an_item_is_searched_alike_whoever_leaves_before_it(some: list[int]) -> None:
    assert torch.equal(found(torch.tensor(some)), found(torch.arange(N))[some])
