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
from calibrant.attacks.boundary import EVALUATIONS, OUTWARD, OVERSHOOT, firm, settle
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


def three_channels(grey: nn.Module) -> nn.Conv2d:
    """A convolution of three equal channels that sees what this one sees of one."""
    assert isinstance(grey, nn.Conv2d)
    colour = nn.Conv2d(3, grey.out_channels, 3)
    with torch.no_grad():
        colour.weight.copy_(grey.weight.expand(-1, 3, -1, -1) / 3)
        assert grey.bias is not None and colour.bias is not None
        colour.bias.copy_(grey.bias)
    return colour


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


@pytest.mark.parametrize("batch", [16, 24])
def test_what_is_left_of_a_search_shares_its_passes_whatever_batch_it_came_in(batch: int) -> None:
    """One pass a look may be short of a batch; when each batch had a search of its own, every one of its passes was."""
    model, x = Network().eval(), images(100)
    seen, own = Field(model, Bounds(), torch.float32), model(x).argmax(-1).detach()
    task = Task(x, own, Bounds())
    far = (x + 0.5 * torch.sign(torch.rand(x.shape, generator=torch.Generator().manual_seed(2)) - 0.5)).clamp(0, 1)
    flips = model(far).argmax(-1) != own
    some, start = task.take(flips), task.margin(model(x).detach())[flips]
    assert int(flips.sum()) > 3 * 16
    model.sizes.clear()
    least = torch.zeros(len(start))
    point, success = settle(seen, some, far[flips], far[flips], start, least, batch=batch, search=True)
    short = sum(size < batch for size in model.sizes)
    assert bool(success.all()) and short <= 1 + len(OVERSHOOT) + EVALUATIONS
    # from points this far some searches end by their count and not at the root: up to 8e-4 apart in other batches
    whole, _ = settle(seen, some, far[flips], far[flips], start, least, batch=1000, search=True)
    torch.testing.assert_close(norms(point - some.origin, 2), norms(whole - some.origin, 2), rtol=2e-3, atol=0)


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
    task, start = Task(origin, torch.zeros(30, dtype=torch.long), Bounds(), False, 0.0), origin[:, 0] - 0.5
    moved, kept = firm(Field(model, Bounds(), torch.float64), task, point, torch.ones(30, dtype=torch.bool), start, 30)
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
    moved, kept = firm(seen, task, point, claimed, origin[:, 0] - 0.5, 6)
    assert kept.tolist() == [True, True, True, True, True, False]
    reach = (norms(moved - origin, 2) / norms(point - origin, 2))[:5]
    chords = [OUTWARD[0], 1 / 0.997, 1 / 0.6]  # the chord from the origin is the line itself, and has no noise
    wanted = [1.0, *chords, next(r for r in OUTWARD if r * 0.2 > 1)]
    most = (0.9 / (0.4 * share[:5, 0])).tolist()  # where the bounds are
    expected = torch.tensor([*map(min, wanted, most)], dtype=torch.float64)
    torch.testing.assert_close(reach, expected, rtol=1e-9, atol=0)
    assert torch.equal(moved[0], point[0])


def test_a_search_takes_the_layout_that_is_fastest_and_the_last_word_is_said_in_the_callers_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TF32 is imitated: convolutions are said to round their operands, as they do on CUDA unless told not to."""

    class Laid(Network):
        def forward(self, x: Tensor) -> Tensor:
            layouts.append(x.is_contiguous())
            return self.head(self.body(x).flatten(1))

    layouts: list[bool] = []
    model, x = Laid().eval(), images(24).expand(-1, 3, -1, -1).contiguous()
    model.body[0] = three_channels(model.body[0])
    as_it_is = DDN().run(model, x)
    assert all(layouts)
    layouts.clear()
    monkeypatch.setattr(field, "_rounds_operands", lambda x: True)
    laid = DDN().run(model, x)
    assert not all(layouts) and layouts[0] and layouts[-1]  # the clean pass, and what `firm` sees
    torch.testing.assert_close(laid.distance, as_it_is.distance, rtol=1e-4, atol=0)
    views = Network().eval()
    views.body[0] = model.body[0]
    weights = [p.clone() for p in views.parameters()]
    torch.testing.assert_close(DDN().run(views, x).distance, as_it_is.distance, rtol=1e-4, atol=0)
    assert all(p.is_contiguous() and torch.equal(p, w) for p, w in zip(views.parameters(), weights, strict=True))


def test_what_is_a_little_short_of_the_noise_takes_one_more_pass_for_all_of_them() -> None:
    """Twenty points at twenty distances before a curved boundary: the chord from the origin says how far each goes."""

    def model(x: Tensor) -> Tensor:
        passes.append(len(x))
        others = torch.tensor([-1.0, -2.0, -3.0], dtype=x.dtype).expand(len(x), 3)
        return torch.cat([torch.full_like(x, 0.25), x**2, others], 1)  # class 1 where x > 0.5

    passes: list[int] = []
    origin = torch.full((20, 1), 0.1, dtype=torch.float64)
    point = origin + 0.4 * torch.linspace(0.99, 0.9999, 20, dtype=torch.float64)[:, None]
    task = Task(origin, torch.zeros(20, dtype=torch.long), Bounds(), False, 0.0)
    seen, start = Field(model, Bounds(), torch.float64), origin[:, 0] ** 2 - 0.25
    moved, kept = firm(seen, task, point, torch.ones(20, dtype=torch.bool), start, 20)
    assert bool(kept.all()) and bool((moved > 0.5).all()) and float(moved.max()) < 0.51
    again = 10 + FEWEST + 3  # half of them behind others
    assert passes == [20, again, again, 20]  # where they were, that once more for the noise, and where they go


def test_inputs_at_a_boundary_are_not_judged_by_the_kernels_of_another_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 with channels last is imitated: there the runner-up seems a little ahead, and an input that stands right
    before the boundary seems to have crossed it already; half precision says so of every other one."""
    monkeypatch.setattr(field, "_rounds_operands", lambda x: x.dtype == torch.float32)
    g = torch.Generator().manual_seed(0)

    class Layout(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(48, 5)
            with torch.no_grad():
                self.body.weight.copy_(torch.randn(5, 48, generator=g))
                self.body.bias.zero_()

        def forward(self, x: Tensor) -> Tensor:
            z = self.body(x.flatten(1))
            top = z.detach().float().topk(2).values
            return z if x.is_contiguous() else z + 2e-4 * (z.detach().float() < top[:, :1])

    model = Layout().eval()
    x = 0.3 + 0.4 * torch.rand(60, 3, 4, 4, generator=g)
    near = DDN(reduced=False).run(model, x).adversarial
    own = model(x).argmax(-1)
    low, high = torch.zeros(60), torch.ones(60)  # to right before the boundary, by halves
    for _ in range(40):
        middle = (low + high) / 2
        stays = model(x + middle[:, None, None, None] * (near - x)).argmax(-1) == own
        low, high = torch.where(stays, middle, low), torch.where(stays, high, middle)
    at = x + low[:, None, None, None] * (near - x)
    result = DDN(reduced=True).run(model, at, own)
    assert bool(result.success.all()) and bool((model(result.adversarial).argmax(-1) != own).all())
    assert float(result.distance.max()) < 0.05 * float(DDN(reduced=False).run(model, x).distance.median())
