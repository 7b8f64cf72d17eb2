"""Running the shared part once gives the naive loop's numbers bit for bit, and runs it once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

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
    calls: list[int] = []
    real = torch.ops.aten.convolution.default
    from calibrant.ensembles import replay

    dispatch = replay.Tape.__torch_dispatch__

    def counting(self, func, types, args=(), kwargs=None):
        running = not (self.shared and self.recorded)
        if func is real and running:
            calls.append(1)
        return dispatch(self, func, types, args, kwargs)

    monkeypatch.setattr(replay.Tape, "__torch_dispatch__", counting)
    features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
    model = nn.Sequential(features, nn.Dropout(0.5), nn.Linear(64, 3)).eval()
    assert MCDropout(model, members=7).members(X).shape == (7, 5, 3)
    assert len(calls) == 2  # two convolutions, once each, for seven members


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
