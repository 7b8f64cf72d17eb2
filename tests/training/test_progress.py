"""The messages and the log of a training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from calibrant.provenance import command, commit
from calibrant.training.environment import environment
from calibrant.training.progress import Progress


def row(epoch: int) -> dict[str, float]:
    return {"epoch": epoch, "loss": 0.5, "accuracy": 0.9, "ece": 0.01, "images_per_second": 1234.0}


def test_the_log_is_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    first = Progress("run", 5, log, quiet=True)
    first.begin(0, 10)
    for epoch in (1, 2, 3):
        first.epoch(row(epoch))
    log.write_text(log.read_text() + '{"epoch": 4, "lo')  # torn by a kill
    second = Progress("run", 5, log, quiet=True)
    second.begin(2, 10)
    second.say("resumed")
    second.epoch(row(3))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [entry.get("epoch", entry.get("event")) for entry in lines] == [1, 2, "resumed", 3]


def test_a_line_per_epoch_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("run", 5, bar=False)
    progress.begin(0, 10)
    progress.step(3, 100, 0.1)
    progress.epoch(row(1))
    progress.end()
    captured = capsys.readouterr()
    assert captured.out == "" and "run epoch 1/5 loss 0.5000 accuracy 90.00% ece 1.00% 1,234 img/s" in captured.err


def test_a_bar_with_the_latest_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("run", 2, bar=True)
    progress.begin(0, 10)
    progress.epoch(row(1))
    progress.step(11, 5000, 1.0)
    progress.say("something")
    progress.end()
    captured = capsys.readouterr()
    assert captured.out == "" and "something" in captured.err


def test_the_environment_names_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    found = environment("cpu")
    assert found["packages"]["torch"] == torch.__version__ and found["device"] == "cpu"
    assert str(Path.home()) not in json.dumps(found)
    monkeypatch.setenv("CALIBRANT_COMMIT", "abc")
    assert commit() == "abc"
    assert command(["/somewhere/bin/calibrant", "train", "x"]) == "calibrant train x"
