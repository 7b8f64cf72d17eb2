"""While steps run, a line now and then says how far they are, and nothing else is printed."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from lightning_utilities.core import rank_zero

from calibrant.bench import progress
from calibrant.bench.place import Place
from calibrant.bench.train import Train
from calibrant.executors import InProcess, LocalProcesses, Pool, execute
from calibrant.training import How
from calibrant.training import read as recipe
from calibrant.training.run import make_fabric
from tests.executors.test_executors import Note


@pytest.mark.parametrize("pool", [InProcess, lambda: LocalProcesses(1)])
def test_a_long_step_is_reported_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: type) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.05)
    monkeypatch.setattr(progress, "EVERY", 0.1)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == 3:
            (tmp_path / "told").touch()  # which ends the step

    made: Pool = progress.Reporting(pool(), say)
    assert [o.ending for o in execute([Note(tmp_path, "long", until="told")], made)] == ["done"]
    assert len(lines) >= 3 and all("s] long: running for " in line for line in lines)


def test_a_training_tells_its_epoch_unless_it_shows_a_bar(tmp_path: Path) -> None:
    place = Place(tmp_path, tmp_path, How(device="cpu", quiet=True))
    step = Train(recipe("digits/cross_entropy", ["epochs=20"]), place)
    assert step.progress() == "", "not begun"
    step.folder.mkdir()
    rows = [{"epoch": 1, "seconds": 9.0}, {"event": "a message"}, {"epoch": 5, "seconds": 60.0}]
    log = step.folder / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert step.progress() == "epoch 5 of 20, about 15 min left"
    log.write_text(log.read_text() + '{"epoch": 6, "sec')
    assert step.progress() == "", "a line is being written"
    shown = Train(step.recipe, Place(tmp_path, tmp_path, How(device="cpu")))
    assert shown.progress() is None


def test_lightning_gives_no_tips() -> None:
    """With bfloat16 it would announce mixed precision, in every process."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    import lightning  # noqa: F401, which replaces the logger

    rank_zero.log.addHandler(handler)
    try:
        make_fabric(recipe("digits/cross_entropy", ["precision=bfloat16"]), How(device="cpu"))
    finally:
        rank_zero.log.removeHandler(handler)
    assert not records
