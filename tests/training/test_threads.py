"""Tiny batches use one thread, and a resumed run the number of threads that it started with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from calibrant.files import hashed
from calibrant.training import How, read, train
from calibrant.training.environment import enough_threads, recorded_threads


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
