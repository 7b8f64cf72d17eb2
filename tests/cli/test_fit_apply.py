"""`calibrant fit` and `calibrant apply`: the names that scripts rely on, exit codes, one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibrant import files
from tests.cli.commands import call, make


@pytest.fixture
def preds(tmp_path: Path) -> Path:
    return make(tmp_path / "calibration.npz", 0, "calibration")


def test_fit_json_has_the_promised_names(preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "fit", preds, "--method", "temperature", "-o", tmp_path / "map", "--json")
    found = json.loads(out)
    assert code == 0
    assert {"method", "parameters", "certificate", "guard", "nll_before", "nll_after"} <= found.keys()
    assert found["method"] == "temperature" and found["parameters"]["temperature"] == pytest.approx(3, rel=0.15)
    assert found["guard"]["ok"] is True and found["guard"]["reasons"] == []
    assert found["nll_after"] < found["nll_before"] and found["certificate"]["sign_change"] is True
    assert "ranking" not in found


def test_auto_adds_the_ranking_and_apply_writes_every_format(
    preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(capsys, "fit", preds, "-o", tmp_path / "map", "--budget", 3, "--json")
    found = json.loads(out)
    assert code == 0 and sum(row["status"] == "chosen" for row in found["ranking"]) == 1
    test = make(tmp_path / "test.npz", 1, "test")
    for name in ("o.npz", "o.safetensors", "o.parquet", "o.csv"):
        code, out, _ = call(capsys, "apply", tmp_path / "map", test, "-o", tmp_path / name, "--json")
        assert code == 0 and json.loads(out)["n"] == 900
        assert json.loads(out)["nll_after"] < json.loads(out)["nll_before"]
        code, out, _ = call(capsys, "audit", tmp_path / name, "--no-intervals", "--json")
        assert code == 0 and json.loads(out)[0]["metrics"]["ece"]["value"] < 0.06


def test_top_label_maps_write_predicted_and_confidence(
    preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(capsys, "fit", preds, "--method", "histogram", "--set", "bins=5", "-o", tmp_path / "m")[0] == 0
    test = make(tmp_path / "t.npz", 2, "test")
    assert call(capsys, "apply", tmp_path / "m", test, "-o", tmp_path / "o.npz")[0] == 0
    after = files.read(tmp_path / "o.npz")
    assert after.predicted is not None and after.confidence is not None and len(after.confidence.unique()) <= 5
    before = files.read(test)
    assert before.logits is not None and (before.logits.argmax(1) == after.predicted).all()


def test_the_terminal_shows_the_guard_and_the_folder(
    preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "fit", preds, "--method", "temperature", "-o", tmp_path / "map")
    assert code == 0 and err == "" and "guard ok" in out and "written to" in out and "temperature 3" in out
    code, out, _ = call(capsys, "fit", preds, "--method", "histogram", "--set", "bins=2")
    assert code == 0 and "flagged" in out and "not written" in out
    code, out, _ = call(capsys, "fit", make(tmp_path / "t.npz", 5, "test"), "--method", "temperature", "--allow-reuse")
    assert code == 0 and "on purpose" in out


def test_strict_refuses_with_exit_code_1_and_writes_nothing(
    preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(
        capsys, "fit", preds, "--method", "histogram", "--set", "bins=2", "--strict", "-o", tmp_path / "map"
    )
    assert code == 1 and out == "" and err.count("\n") == 1 and "refused" in err and not (tmp_path / "map").exists()
