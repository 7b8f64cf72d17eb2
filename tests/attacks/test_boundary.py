"""The search for the boundary on the way to a success: every item its own curve, with a root that is known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from calibrant.attacks import noise
from calibrant.attacks.boundary import _root, settle
from calibrant.attacks.bounds import Bounds
from calibrant.attacks.field import Field
from calibrant.attacks.task import Task

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


def test_a_search_ends_with_as_little_clearance_as_is_enough() -> None:
    """An eighth, say, costs fewer passes, and what is kept has no more of it."""
    items, passes = torch.arange(N), []
    ends = torch.zeros(N, dtype=torch.float64), torch.ones(N, dtype=torch.float64)
    below, above = (curves(items)(end) for end in ends)

    def clearance(t: Tensor, rows: Tensor) -> Tensor:
        passes.append(len(rows))
        return curves(items[rows])(t)

    counts = []
    for enough in (0.0, 0.01):
        passes.clear()
        at = _root(clearance, *(e.clone() for e in ends), below.clone(), above.clone(), above > 0, above * 0 + enough)
        counts.append(sum(passes))
        assert bool((curves(items)(at) > 0).all())
    assert counts[1] < 0.8 * counts[0] and float(curves(items)(at).median()) <= 0.01


@pytest.mark.parametrize(("times", "reached"), [(1.001, True), (1.4, True), (50.0, True), (100.0, False)])
def test_what_is_beyond_64_times_the_way_is_not_the_attacks(times: float, reached: bool) -> None:
    """There any direction ends in a corner of the box; a rescue may know a nearer success."""

    def model(x: Tensor) -> Tensor:  # class 1 beyond 0.5
        others = torch.tensor([-1.0, -2.0, -3.0], dtype=x.dtype).expand(len(x), 3)
        return torch.cat([torch.full_like(x[:, :1], 0.5), x[:, :1] ** 3 / 0.25, others], 1)

    origin = torch.zeros(9, 4, dtype=torch.float64)
    best = torch.tensor([0.5 / times, 0.0, 0.0, 0.0], dtype=torch.float64).expand(9, 4)
    task = Task(origin, torch.zeros(9, dtype=torch.long), Bounds(), False, 0.0)
    start, least = torch.full((9,), -0.5, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)
    field = Field(model, Bounds(), torch.float64)
    point, success = settle(field, task, best, best, start, least, batch=9, search=True)
    assert bool((success == reached).all())
    if reached:
        # a success clears the boundary by a ten-thousandth of the clean margin, and the search ends close to that
        torch.testing.assert_close(point[:, 0], torch.full((9,), 0.5, dtype=torch.float64), rtol=2e-4, atol=0)


@pytest.mark.parametrize(("height", "reached"), [(4e-5, True), (1e-12, False)])
def test_a_ridge_too_narrow_to_be_clear_of_is_a_success_beyond_the_noise(height: float, reached: bool) -> None:
    """Its top is less than a ten-thousandth of the clean margin high, and falls on both sides; noise is far less."""

    def model(x: Tensor) -> Tensor:
        others = torch.tensor([-1.0, -2.0, -3.0], dtype=x.dtype).expand(len(x), 3)
        return torch.cat([torch.full_like(x[:, :1], 0.5), 0.5 + height - (x[:, :1] - 0.5).abs(), others], 1)

    origin = torch.zeros(9, 4, dtype=torch.float64)
    best = torch.tensor([0.5, 0.0, 0.0, 0.0], dtype=torch.float64).expand(9, 4)
    task = Task(origin, torch.zeros(9, dtype=torch.long), Bounds(), False, 0.0)
    start, least = torch.full((9,), -0.5, dtype=torch.float64), torch.full((9,), 1e-9, dtype=torch.float64)
    point, success = settle(Field(model, Bounds(), torch.float64), task, best, best, start, least, batch=9, search=True)
    assert bool((success == reached).all())
    short = best[:, 0] - point[:, 0]
    # the nearest point on the ridge, and not its top; where there is none, the attack's own
    assert bool(((short > 0.9 * height) & (short < height) if reached else short == 0).all())


@pytest.mark.parametrize(
    ("dtype", "coarse"), [(torch.float64, False), (torch.float32, False), (torch.float16, True), (torch.bfloat16, True)]
)
def test_only_coarse_rounding_ends_a_search_early(dtype: torch.dtype, coarse: bool) -> None:
    field = Field(torch.nn.Identity(), Bounds(), dtype)
    assert noise.coarse(field, torch.device("cpu")) == coarse
    assert noise.coarse(field, torch.device("cuda")) == (coarse or dtype == torch.float32)  # TF32
