"""`calibrant train` and `calibrant predict`: what they print and write, and their errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from calibrant import files
from calibrant.cli import run
from tests.cli.commands import call

SMALL = ["--set", "epochs=2", "--set", "network.hidden=[32]", "--device", "cpu"]


def test_train_then_predict_then_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert run(["train", "digits/focal", "-o", str(out), *SMALL, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["metrics"]) == {"validation", "calibration", "test"} and printed["epochs"] == 2
    assert run(["train", "digits/focal", "-o", str(out), *SMALL]) == 0
    shown = capsys.readouterr().out
    assert "accuracy" in shown and "calibrant audit" in shown
    test = printed["metrics"]["test"]  # fractions in JSON, percent in the table; NLL is no share
    assert f"{100 * test['accuracy']:.2f}%" in shown and f"{test['nll']:.4f}" in shown
    for split in ("test", "validation"):
        file = tmp_path / f"{split}.npz"
        assert run(["predict", str(out), "-o", str(file), "--split", split, "--device", "cpu"]) == 0
        a, b = files.read(out / f"{split}.npz"), files.read(file)
        assert a.logits is not None and b.logits is not None
        torch.testing.assert_close(a.logits, b.logits, atol=1e-6, rtol=1e-6)
        assert a.ids == b.ids and a.split == b.split and a.classes == b.classes
    capsys.readouterr()
    assert run(["audit", str(out / "test.npz"), "--json", "--no-intervals"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["metrics"]["ece"]["value"] == pytest.approx(
        printed["metrics"]["test"]["ece"]
    )


def test_without_test_items_no_next_command_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "data.sizes={train=100, validation=40, calibration=0, test=0}"
    said = call(capsys, "train", "digits/cross_entropy", "-o", tmp_path / "run", *SMALL, "--set", sizes)[1]
    assert "next:" not in said and max(map(len, said.splitlines())) < 80
    assert said.split("\n")[0].split() == ["split", "n", "accuracy", "nll", "brier", "ece", "gap", "auroc"]


def test_a_search_prints_what_it_chose_and_by_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split, word in (("validation", "chosen by nll on validation"), ("test", "oracle choice, by nll on test")):
        grid = f"selection={{grid={{'loss.gamma'=[0, 9]}}, split='{split}'}}"
        assert run(["train", "digits/focal", "-o", str(tmp_path / split), *SMALL, "--set", grid]) == 0
        assert word in capsys.readouterr().out
