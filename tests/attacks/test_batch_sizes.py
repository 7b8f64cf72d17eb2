"""On CUDA a new size of a batch is dear, so searches ask for few; a network that flattens by `view` is attacked, too.

CUDA is imitated: the rounding of sizes is switched on, and half precision asked for, on the processor.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from calibrant.attacks import DDN, CarliniWagner, DeepFool, field
from calibrant.attacks.attack import Attack
from calibrant.attacks.boundary import OUTWARD, firm
from calibrant.attacks.bounds import Bounds
from calibrant.attacks.field import FEWEST, Field, rounded
from calibrant.attacks.task import Task, norms
from calibrant.ensembles.dropout import MCDropout


class Network(nn.Module):
    """Small, with a curved boundary; notes how many rows it is given."""

    def __init__(self, classes: int = 5) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.body = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Tanh(), nn.MaxPool2d(2))
            self.head = nn.Linear(54, classes)
        self.sizes: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return self.head(self.body(x).view(len(x), -1))  # no reshape: as many networks are written


def images(n: int) -> Tensor:
    return torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(1))


@given(st.integers(1, 100_000))
def test_sizes_are_few_and_at_most_half_as_large_again(n: int) -> None:
    m = rounded(n)
    assert n <= m <= max(1.5 * n, n + 1) and rounded(m) == m
    assert m & (m - 1) == 0 or (m % 3 == 0 and (m // 3) & (m // 3 - 1) == 0)


@pytest.mark.parametrize("attack", [DDN(), CarliniWagner(iterations=30), DeepFool()], ids=lambda a: type(a).__name__)
def test_filled_up_batches_give_the_same_distances_by_fewer_sizes(
    attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = images(101)
    plain, few = Network().eval(), Network().eval()
    as_it_is = attack.run(plain, x)
    monkeypatch.setattr(field, "_looks_for_kernels", lambda rows: True)
    rounds = attack.run(few, x)
    assert torch.equal(rounds.success, as_it_is.success) and bool(rounds.success.all())
    torch.testing.assert_close(rounds.distance, as_it_is.distance, rtol=1e-5, atol=0)
    assert len(set(few.sizes)) < len(set(plain.sizes))
    assert bool((few(rounds.adversarial).argmax(-1) != few(x).argmax(-1)).all())


@pytest.mark.parametrize("attack", [DDN(), CarliniWagner(iterations=30)], ids=lambda a: type(a).__name__)
def test_where_dropout_draws_nothing_is_filled_up(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows have other masks, and with them another predictor would be attacked."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Dropout(0.3), nn.Linear(288, 7)
        )
    ensemble, x = MCDropout(net, members=4), images(21)
    as_it_is = attack.run(ensemble, x)
    monkeypatch.setattr(field, "_looks_for_kernels", lambda rows: True)
    assert torch.equal(attack.run(ensemble, x).distance, as_it_is.distance)


@pytest.mark.parametrize("batch", [17, 33])
def test_no_batch_is_larger_than_was_asked_for(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(field, "_looks_for_kernels", lambda rows: True)
    model = Network().eval()
    DDN(batch=batch).run(model, images(60))
    beside = FEWEST + 3  # others, behind which half a batch is looked at again
    assert max(model.sizes) <= max(batch, -(-batch // 2) + beside)


def test_what_fails_for_another_reason_says_so_and_memory_is_not_asked_for_twice() -> None:
    class Fails(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            if x.requires_grad:
                self.calls += 1
                raise torch.OutOfMemoryError("no room") if self.memory else RuntimeError(f"failure {self.calls}")
            return x.flatten(1)[:, :3]

    for memory, said, calls in ((False, "failure 1", 2), (True, "no room", 1)):
        model = Fails()
        model.memory = memory
        seen = Field(model, Bounds(), torch.float32, reduced=True)
        with pytest.raises(RuntimeError, match=said):
            seen.gradient(images(3), lambda z: z[:, 0])
        assert model.calls == calls and seen.channels_last


def test_half_precision_with_channels_last_leaves_a_network_that_views_its_maps_alone() -> None:
    model, x = Network().eval(), images(12)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    exact, half = (DDN(reduced=reduced).run(model, x) for reduced in (False, True))
    assert bool(half.success.all())
    torch.testing.assert_close(half.distance, exact.distance, rtol=0.02, atol=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_what_clears_the_noise_beside_others_is_looked_at_where_it_stands() -> None:
    """The last row of a batch sees another threshold, as a kernel's last tile may: there a point goes farther."""

    def model(x: Tensor) -> Tensor:
        level = torch.full((len(x),), 0.5, dtype=x.dtype)
        level[-1] = 0.5004
        return torch.stack([level, x.flatten(1)[:, 0]], 1)

    origin = torch.full((30, 1), 0.1, dtype=torch.float64)
    point = origin + torch.linspace(0.9985, 0.9999, 30, dtype=torch.float64)[:, None] * 0.4
    task = Task(origin, torch.zeros(30, dtype=torch.long), Bounds(), False, 0.0)
    moved, kept = firm(Field(model, Bounds(), torch.float64), task, point, torch.ones(30, dtype=torch.bool), 30)
    assert bool(kept.all()) and bool((model(moved).argmax(-1) == 1).all())


def test_what_does_not_hold_goes_as_far_out_as_it_must_and_nothing_else_moves() -> None:
    """On a line the margin is known: some points lie a little, some far before the boundary, one never clears."""

    def model(x: Tensor) -> Tensor:
        return torch.stack([torch.full((len(x),), 0.5, dtype=x.dtype), x.flatten(1)[:, 0]], 1)  # class 1 where x > 0.5

    origin = torch.full((6, 1), 0.1, dtype=torch.float64)
    share = torch.tensor([1.2, 0.9995, 0.997, 0.6, 0.2, 1e-9], dtype=torch.float64)[:, None]
    point = origin + share * 0.4  # the boundary is at a distance of 0.4
    task = Task(origin, torch.zeros(6, dtype=torch.long), Bounds(), False, 0.0)
    seen = Field(model, Bounds(), torch.float64)
    claimed = torch.ones(6, dtype=torch.bool)
    moved, kept = firm(seen, task, point, claimed, 6)
    assert kept.tolist() == [True, True, True, True, True, False]
    reach = (norms(moved - origin, 2) / norms(point - origin, 2))[:5]
    wanted = [1.0, *(next(r for r in OUTWARD if r * s > 1) for s in (0.9995, 0.997, 0.6, 0.2))]
    most = (0.9 / (0.4 * share[:5, 0])).tolist()  # where the bounds are
    expected = torch.tensor([*map(min, wanted, most)], dtype=torch.float64)
    torch.testing.assert_close(reach, expected, rtol=1e-9, atol=0)
    assert torch.equal(moved[0], point[0])
