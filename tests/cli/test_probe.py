"""`calibrant probe RUN/ --what robustness`, and `train --levels`: what they print, write, keep and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from calibrant.attacks import levels, robustness
from calibrant.cli import run
from calibrant.data import Batches, load
from calibrant.train import How, distances, read, train
from calibrant.train import load as load_run

SETTINGS = ["epochs=40", "network={name='mlp', hidden=[32], batch_norm=false}"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("probe")
    for seed in (0, 1):
        train(read("digits/cross_entropy", [*SETTINGS, f"seed={seed}"]), root / str(seed), How("cpu", quiet=True))
    return [str(root / "0"), str(root / "1")]


def probed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run(["probe", *words, "--what", "robustness", "--device", "cpu", "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)["robustness"]
    return found


def test_distances_are_kept_with_the_run(
    runs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = probed(capsys, runs[0], "--levels", "5")
    kept = distances.read(Path(runs[0]) / "robustness" / "ddn" / "test.safetensors")
    data = load("digits")
    batches = Batches(data["test"], 500, mean=data.mean, std=data.std)
    alone = robustness(load_run(runs[0]).members[0], batches, "ddn")
    torch.testing.assert_close(kept.distance.float(), alone)
    rows = found["splits"]["test"]["levels"]  # type: ignore[index]
    cut = levels(kept.distance, 5)
    assert [row["n"] for row in rows] == torch.bincount(cut).tolist() == [90] * 5
    assert rows[0]["ece"]["low"] <= rows[0]["ece"]["value"] <= rows[0]["ece"]["high"]
    assert rows[0]["variance"] is None and rows[0]["distance"] < rows[4]["distance"]
    monkeypatch.setattr(distances, "robustness", lambda *a, **k: pytest.fail("measured twice"))
    assert probed(capsys, runs[0], "--levels", "5") == found


def test_several_runs_give_the_variance(runs: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    together = probed(capsys, *runs, "--limit", "50", "--levels", "2")
    assert together == probed(capsys, runs[0], "--runs", runs[1], "--limit", "50", "--levels", "2")
    rows = together["splits"]["test"]["levels"]  # type: ignore[index]
    assert together["runs"] == 2 and all(row["variance"]["value"] > 0 for row in rows)
    assert (Path(runs[0]) / "robustness" / "ddn" / "test-first-50.safetensors").is_file()


def test_table_and_report(runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    words = ["probe", runs[0], "--split", "validation,test", "--limit", "60", "--levels", "3", "--html", str(page)]
    assert run([*words, "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "validation: " in out and "test: " in out and "easiest to attack" in out and str(page) in out
    text = page.read_text()
    assert text.count("Is what is easily attacked badly calibrated?") >= 2
    assert "ECE by level" in text and "<svg" in text


def test_the_table_fits_a_terminal_and_no_interval_breaks(
    runs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert run(["probe", *runs, "--limit", "60", "--levels", "3", "--device", "cpu"]) == 0
    said = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(said) if line.startswith("level"))
    rows = said[at + 1 : at + 7]
    assert [line[:1] for line in rows] == ["1", " ", "2", " ", "3", " "], "a line of values, a line of intervals"
    assert all(line.count("[") == line.count("]") == line.count(",") == 4 for line in rows[1::2])
    assert all(len(line) <= 100 for line in said[at - 1 : at + 7])


def test_robustness_that_was_probed_is_what_training_takes(
    runs: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """probe on train and validation, then `train --levels RUN`: the twin is audited beside it, in one report."""
    probed(capsys, runs[0], "--split", "train,validation")
    held = {p: p.stat().st_mtime_ns for p in (Path(runs[0]) / "robustness").rglob("*.safetensors")}
    sets = [w for s in [*SETTINGS, "targets={name='ar_adals', alpha=0.1}"] for w in ("--set", s)]
    out = tmp_path / "ar"
    words = ["train", "digits/cross_entropy", "-o", str(out), "--levels", runs[0], "--device", "cpu", *sets]
    assert run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["predictor"] for row in found["levels"]["table"]] == [
        "vanilla",
        "vanilla + temperature",
        "AR-AdaLS",
        "AR-AdaLS + temperature",
    ]
    assert not (out / "vanilla").exists(), "no twin is trained where levels are handed in"
    page = (out / "report.html").read_text()
    assert "Is what is easily attacked badly calibrated?" in page and "the smoothing ε of each level" in page
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in held.items()), "nothing was measured again"
    assert run(words) == 0
    said = capsys.readouterr().out
    assert "AR-AdaLS + temperature" in said.replace("\n", " ") or "AR-AdaLS" in said
    assert str(out / "report.html") in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["{run}", "--what", "robustnes"], "did you mean 'robustness'"),
        (["{run}", "--what", ","], "--what is empty"),
        (["{run}", "--ruler", "cv"], "did you mean 'cw'"),
        (["{run}", "--levels", "451"], "--levels 451 of 450 test items"),
        (["{run}", "--split", "tset"], "unknown split 'tset'"),
        (["{run}", "--variance", "tru"], "did you mean 'true'"),
        (["{run}", "--html", "no/such/folder.html"], "name a file in a folder that exists"),
        (["{run}", "--device", "npu"], "--device 'npu'"),
        (["nothing"], "no model 'nothing'"),
        (["torch.nn:Identity"], "--data is missing"),
        (["torch.nn:Identity", "--data", "digits"], "name a folder that keeps the results by -o"),
    ],
)
def test_what_a_user_can_get_wrong(
    arguments: list[str],
    says: str,
    runs: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(Path(runs[1]).rglob("*"))
    assert run(["probe", *(word.format(run=runs[1]) for word in arguments)]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and "Traceback" not in captured.err and captured.out == ""
    assert sorted(Path(runs[1]).rglob("*")) == before and not list(tmp_path.iterdir()), "nothing is written"
