"""Tiny batches use one thread, and a resumed run the number of threads that it started with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from calibrant.files import hashed
from calibrant.losses import CrossEntropy
from calibrant.training import How, read, train
from calibrant.training.environment import enough_threads, recorded_threads
from calibrant.training.optimiser import Optimiser, make_optimiser
from calibrant.training.step import Member, Step


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("shape", "batch", "recorded", "expected"),
    [((1, 8, 8), 64, None, 1), ((3, 32, 32), 128, None, 2), ((1, 8, 8), 64, 3, 3), ((3, 32, 32), 128, 1, 1)],
)
def test_enough(shape: tuple[int, ...], batch: int, recorded: int | None, expected: int) -> None:
    with enough_threads(shape, batch, "cpu", recorded):
        assert torch.get_num_threads() == expected
    assert torch.get_num_threads() == 2


def test_a_resumed_run_uses_the_recorded_threads(tmp_path: Path) -> None:
    used: list[int] = []

    def listen(epoch: int, validation: object) -> None:
        used.append(torch.get_num_threads())
        if epoch == 2 and len(used) == 2:
            raise KeyboardInterrupt

    recipe = read("digits/cross_entropy", ["network.hidden=[8]", "epochs=3", "batch=512"])
    how, run = How("cpu", quiet=True, listen=listen), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(recipe, run, how)
    where = hashed.read(run / "environment.json")
    assert recorded_threads(run) == where["threads"] == used[0] == 1
    hashed.write(run / "environment.json", {**where, "threads": 2})
    train(recipe, run, how)
    assert used == [1, 1, 2, 2] and recorded_threads(run) == 2 and torch.get_num_threads() == 2
    (run / "environment.json").unlink()
    assert recorded_threads(run) is None


@pytest.mark.parametrize("enabled", [True, False])
def test_a_step_on_the_cpu_leaves_autograds_threads_as_the_caller_has_them(enabled: bool) -> None:
    seen: list[bool] = []

    def backward(loss: torch.Tensor) -> None:
        seen.append(torch._C._is_multithreading_enabled())
        loss.backward()  # type: ignore[no-untyped-call]

    model = nn.Linear(3, 2)
    member = Member(model, make_optimiser(Optimiser("sgd", 0.1), model), model)
    step = Step(member, CrossEntropy(reduction="none"), backward=backward)
    with torch.autograd.set_multithreading_enabled(enabled):
        step(torch.ones(4, 3), torch.eye(2)[[0, 1, 0, 1]], None, torch.arange(4), 4)
    assert seen == [enabled]
