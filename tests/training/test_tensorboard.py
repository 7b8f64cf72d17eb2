"""`--tensorboard` writes the numbers of the log, also after a resume; TensorBoard reads them back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrant.cli import run
from calibrant.errors import MissingDependencyError
from calibrant.training import How, progress, read, train

SMALL = ["network.hidden=[16]"]


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def test_tensorboard_reads_what_the_log_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra [tensorboard]")

    def stop(epoch: int, validation: object) -> None:
        if epoch == 3:
            raise KeyboardInterrupt

    recipe = read("digits/cross_entropy", [*SMALL, "epochs=4"])
    with pytest.raises(KeyboardInterrupt):  # in the third epoch, two of which are saved
        train(recipe, tmp_path / "run", How("cpu", quiet=True, tensorboard=True, listen=stop))
    train(recipe, tmp_path / "run", How("cpu", quiet=True, tensorboard=True))
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    seen = scalars(tmp_path / "run" / "tensorboard")
    for tag, key in (("train/loss", "loss"), ("validation/ece", "ece"), ("train/lr", "lr"), ("validation/nll", "nll")):
        assert seen[tag] == [(row["epoch"], pytest.approx(row[key], rel=1e-5)) for row in log]
    assert [row["epoch"] for row in log] == [1, 2, 3, 4]


def test_without_tensorboard_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"calibrant\[tensorboard\]"):
        train(read("digits/cross_entropy", SMALL), tmp_path / "a", How("cpu", tensorboard=True))
    assert run(["train", "digits/cross_entropy", "-o", str(tmp_path / "b"), "--tensorboard"]) == 2
    assert "pip install 'calibrant[tensorboard]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
