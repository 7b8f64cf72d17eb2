"""Running the shared part once gives the naive loop's numbers bit for bit, and runs it once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from calibrant.ensembles.dropout import MCDropout

X = torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Residual(nn.Module):
    """In-place activations and an in-place sum, before and after the dropout."""

    def __init__(self, inplace_dropout: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.act, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.3, inplace=inplace_dropout)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.act(self.first(x))
        out = self.second(self.drop(kept))
        kept += out  # changes a tensor of the shared part
        return self.head(self.act(kept).mean((2, 3)))


class Convolving(nn.Conv2d):
    """Not PyTorch's own class: its operations are looked at one by one."""


def naive(ensemble: MCDropout, x: torch.Tensor) -> torch.Tensor:
    out = []
    for j in range(ensemble.size):
        with torch.no_grad(), ensemble.member(j) as network:
            out.append(network(x))
    return torch.stack(out)


@pytest.mark.parametrize("inplace", [True, False])
def test_bit_identical_to_the_naive_loop(inplace: bool) -> None:
    ensemble = MCDropout(Residual(inplace).eval(), members=6)
    assert torch.equal(ensemble.members(X), naive(ensemble, X))
    assert not torch.equal(ensemble.members(X)[0], ensemble.members(X)[1])


def test_features_before_a_dropout_in_the_head_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from calibrant.ensembles import passes

    class Counting(TorchDispatchMode):
        convolutions = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.convolutions += func is torch.ops.aten.convolution.default
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(passes.Passes, "_cheaply", lambda self, n, _: map(self.replayed, range(1, n)))
    features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Convolving(4, 4, 3), nn.Flatten())
    model = nn.Sequential(features, nn.Dropout(0.5), nn.Linear(64, 3)).eval()
    with Counting() as seen:
        assert MCDropout(model, members=7).members(X).shape == (7, 5, 3)
    assert seen.convolutions == 2  # two convolutions, once each, for seven members


def test_dropout_of_rate_zero_does_not_end_the_shared_part() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.0), nn.Linear(192, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    ensemble = MCDropout(model, members=3)
    assert torch.equal(ensemble.members(X), naive(ensemble, X))
    silent = MCDropout(model, members=3, p=0.0)
    assert torch.equal(silent.members(X), naive(silent, X))


@pytest.mark.parametrize("p", [None, 0.0])
def test_under_autocast_too(p: float | None) -> None:
    """Autocast remembers the weights it has cast, so that a second pass has fewer operations."""
    ensemble = MCDropout(Residual(False).eval(), members=4, p=p)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ensemble.members(X), naive(ensemble, X))


def test_a_network_that_changes_its_operations_is_run_whole() -> None:
    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.drop, self.head = 0, nn.Dropout(0.5), nn.Linear(192, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            x = x.flatten(1)
            return self.head(self.drop(x + 1 if self.calls % 2 else x * 2))

    model = Moody().eval()
    ensemble = MCDropout(model, members=4)
    fast = ensemble.members(X)
    model.calls = 0
    slow = naive(ensemble, X)
    assert torch.equal(fast[0], slow[0]) and torch.isfinite(fast).all()
    assert not torch.equal(fast[1], fast[0])


class Moody(nn.Module):
    """Another network at every call, inside a module that all members would share."""

    def __init__(self, numbers: bool) -> None:
        super().__init__()
        self.calls, self.numbers = 0, numbers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.numbers:
            return x * float(self.calls)
        return (torch.add, torch.mul, torch.sub)[self.calls % 3](x, 2.0)


@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize("together", [1, 3])
def test_once_a_pass_differs_nothing_is_replayed_any_more(numbers: bool, together: int) -> None:
    moody = Moody(numbers)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), moody, nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    members = MCDropout(model, members=6, together=together).members(X)
    tried = 1 + (together > 1)  # side by side, then alone
    assert moody.calls == 6 + tried and members.isfinite().all()


class Writing(nn.Module):
    """Changes a shared result in ways that are easily overlooked."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first, self.head = how, nn.Linear(192, 8), nn.Linear(8, 3)
        self.drop, self.act = nn.Dropout(0.4), nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x.flatten(1))
        dropped = self.drop(h)
        if self.how == "out":
            torch.add(h, 1.0, out=h)
        elif self.how == "foreach":
            torch._foreach_mul_([h], 2.0)
        else:
            self.act(h)
        return self.head(h + dropped)


@pytest.mark.parametrize("how", ["out", "foreach", "layer"])
@pytest.mark.parametrize("together", [1, 4])
def test_every_way_of_writing_to_a_shared_result_is_undone(how: str, together: int) -> None:
    ensemble = MCDropout(Writing(how).double().eval(), members=9, together=together)
    expected = naive(ensemble, X.double())
    torch.testing.assert_close(ensemble.members(X.double()), expected, rtol=1e-12, atol=1e-12)
    if together == 1:
        assert torch.equal(ensemble.members(X.double()), expected)


@pytest.mark.parametrize("together", [1, 4])
def test_a_network_with_a_mode_of_its_own(together: int) -> None:
    class Plus(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            return out + 0.25 if func is torch.ops.aten.relu.default else out

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act, self.drop, self.head = nn.Linear(192, 8), nn.ReLU(), nn.Dropout(0.4), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with Plus():
                h = self.act(self.first(x.flatten(1)))
                return self.head(self.drop(h))

    ensemble = MCDropout(Inside().double().eval(), members=9, together=together)
    expected = naive(ensemble, X.double())
    torch.testing.assert_close(ensemble.members(X.double()), expected, rtol=1e-12, atol=1e-12)


def test_members_side_by_side_have_the_masks_of_the_naive_loop() -> None:
    """In float64 another order of summation is all that is left; a wrong mask would be seen at once."""
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(inplace=True), nn.Dropout2d(0.4), nn.Conv2d(6, 4, 3), nn.Dropout(0.3, inplace=True),
        nn.Flatten(), nn.AlphaDropout(0.1), nn.Linear(64, 3),
    ).double().eval()  # fmt: skip
    for residual in (Residual(True).double().eval(), Residual(False).double().eval(), model):
        one_by_one = naive(MCDropout(residual, members=11), X.double())
        batched = MCDropout(residual, members=11, together=4).members(X.double())
        torch.testing.assert_close(batched, one_by_one, atol=1e-12, rtol=1e-12)
        assert not torch.allclose(batched[4], batched[5])
    assert all("forward" not in m.__dict__ for m in model.modules())


def test_side_by_side_the_shared_part_still_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    model[3].register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    MCDropout(model, members=10, together=5).members(X)
    assert seen == [5, 25, 25]  # the first member alone, then two batches of five members


class Mixing(nn.Module):
    """An item's logits depend on the others of its batch: members must not share one."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(192, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(x.flatten(1))
        return self.head(x - x.mean(0))


class ItemsSecond(nn.Module):
    """[sequence, item, feature], as recurrent layers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(24, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.drop(x.flatten(2).transpose(1, 2).reshape(len(x), 8, 24).transpose(0, 1)))
        return out.mean(0)


@pytest.mark.parametrize("network", [Mixing, ItemsSecond])
def test_a_network_that_cannot_be_batched_is_run_member_after_member(network: type[nn.Module]) -> None:
    model = network().eval()
    ensemble = MCDropout(model, members=9, together=4)
    assert torch.equal(ensemble.members(X), naive(ensemble, X))


def test_under_autocast_nothing_of_the_replay_stays_behind() -> None:
    model = Residual(False).eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        before = model(X)
        MCDropout(model, members=9, together=3).members(X)
        assert torch.equal(model(X), before)


@pytest.mark.parametrize(
    ("members", "widest", "idle", "free", "expected"),
    [
        (50, 1000, 1000, None, 1),  # a CPU
        (50, 1000, 1000, 2**33, 50),
        (50, 2**26, 0, 2**33, 8),  # large activations
        (50, 2**31, 0, 2**33, 1),
        (5, 1, 0, 2**33, 1),  # too few to be worth a check
        (50, 1000, 2**27, 2**33, 16),  # dropout in the head alone: the features before it are reserved, not computed
    ],
)
def test_how_many_members_share_a_batch_is_bounded_by_memory(
    members: int, widest: int, idle: int, free: int | None, expected: int
) -> None:
    from calibrant.ensembles.side_by_side import together

    assert together(members, widest, idle, free) == expected


class Careful(nn.Module):
    """Decides by its input's strides, as cuDNN's BatchNorm does: a copy only of what is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(64, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x).contiguous()).contiguous()
        out: torch.Tensor = self.head(self.drop(x.flatten(1)))
        return out


@pytest.mark.parametrize("together", [1, 4])
def test_stand_ins_have_the_strides_of_what_they_stand_for(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Careful().eval()
    ensemble = MCDropout(model, members=9, together=together)
    expected = naive(ensemble, X)
    from calibrant.ensembles import passes

    monkeypatch.setattr(passes.Passes, "_cheaply", lambda self, n, _: map(self.replayed, range(1, n)))
    monkeypatch.setattr(passes.Passes, "whole", None)  # were a pass another one, it would be run whole
    torch.testing.assert_close(ensemble.members(X), expected)


def test_a_module_that_is_shared_whole_is_not_called_again_unless_somebody_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from calibrant.ensembles import passes

    monkeypatch.setattr(passes.Passes, "_cheaply", lambda self, n, _: map(self.replayed, range(1, n)))

    class Features(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.Flatten())
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x)

    features, heard = Features(), []
    model = nn.Sequential(features, nn.Dropout(0.5), nn.Linear(64, 3)).eval()
    ensemble = MCDropout(model, members=9)
    members = ensemble.members(X)
    assert features.calls == 2  # recorded, and walked through once more
    assert torch.equal(members, naive(ensemble, X))
    assert "forward" not in features.__dict__
    features[0].register_forward_hook(lambda *_: heard.append(1))
    assert torch.equal(MCDropout(model, members=9).members(X), members) and len(heard) == 9


def test_a_forward_that_somebody_put_on_a_module_stays() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    own = {m: (lambda x, f=m.forward: f(x)) for m in (model[1], model[2])}
    for m, forward in own.items():
        m.forward = forward
    for together in (1, 3):
        MCDropout(model, members=6, together=together).members(X)
    assert all(m.__dict__["forward"] is forward for m, forward in own.items())


def test_where_little_is_shared_members_are_run_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from calibrant.ensembles import passes

    clock = iter([0, 10, 0, 0, 0, 9, 0, 5, *[0] * 50])  # first 10, walked 0, replayed 9, whole 5
    monkeypatch.setattr(passes.time, "thread_time", lambda: next(clock))
    walked: list[int] = []
    real = passes.Passes.replayed
    monkeypatch.setattr(passes.Passes, "replayed", lambda self, j: (walked.append(j), real(self, j))[1])
    ensemble = MCDropout(Residual(False).eval(), members=8)
    assert torch.equal(ensemble.members(X), naive(ensemble, X))
    assert walked == [0, 1, 2]
