"""The README and the tutorial are executed, block by block, in an empty folder, and so is the demo they start with.

`calibrant …` is called in this process, because importing torch for each line would take most of the time; that the
installed command does the same is tested in test_dist.py.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss, roc_auc_score

from calibrant import files
from calibrant.cli import demo as demo_module
from calibrant.cli import run
from tests.hurried import hurried

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "docs/tutorial.md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUNS = {"sh", "python"}
SHOWN = {"text", "json"}  # output, not input
DEMO = ["calibrant", "demo", "-o", "demo"]  # both pages start with it, and it is the longest command: it runs once

Demo = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module", autouse=True)
def hurry() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        hurried(monkeypatch)
        yield


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, hurry: None) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert run(["demo", "-o", str(folder), "--json"]) == 0
    return folder, json.loads(said.getvalue())


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / page).read_text())


def execute(line: str, demo: Path) -> None:
    """One line for a shell, of the kinds that the pages have: a command of ours, perhaps into a file, and make."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["make"]:  # setting up inside a test would never end: make only has to know the targets
        subprocess.run(["make", "-C", str(ROOT), "-n", *words[1:]], check=True, stdout=subprocess.DEVNULL)
    elif words == DEMO:
        shutil.copytree(demo, "demo")
    elif words:
        command, target = (words[:-2], words[-1]) if words[-2] == ">" else (words, None)
        assert command[0] == "calibrant", f"this test cannot run {line!r}"
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            assert run(command[1:]) == 0, line
        if target:
            Path(target).write_text(said.getvalue())


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo: Demo) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for language, code in blocks(page):
        assert language in RUNS | SHOWN, f"{page}: a block of {language!r} is neither executed nor output"
        if language == "sh":
            for line in code.splitlines():
                execute(line, demo[0])
        elif language == "python":
            exec(compile(code, page, "exec"), names)
    assert Path("demo").is_dir()


def test_the_tour_is_short() -> None:
    lines = [line for language, code in blocks("README.md") if language in RUNS for line in code.splitlines() if line]
    assert 10 <= len(lines) <= 30


def test_links_of_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_writes_what_it_says(demo: Demo) -> None:
    folder, result = demo
    assert set(result["files"]) == {"calibration", "test", "focal", "smoothing", "map", "calibrated", "report"}
    assert all(Path(path).exists() for path in result["files"].values())
    assert (folder / "report.html").read_text().lstrip().lower().startswith("<!doctype html>")


def test_parts_are_disjoint_and_say_which_they_are(demo: Demo) -> None:
    folder, _ = demo
    calibration, test = files.read(folder / "calibration.npz"), files.read(folder / "test.npz")
    assert (calibration.split, test.split) == ("calibration", "test")
    assert (calibration.n, test.n) == (600, 950)
    assert not set(calibration.ids or ()) & set(test.ids or ())


def test_three_trainings_are_judged_jointly(demo: Demo) -> None:
    folder, result = demo
    rows = result["table"]
    assert [r["training"] for r in rows[::2]] == ["cross-entropy", "focal loss", "label smoothing"]
    assert all(r["calibrator"] is None for r in rows[::2]) and all(r["calibrator"] for r in rows[1::2])
    assert rows[0]["gap"] > 0.03 and rows[4]["gap"] < -0.05  # overconfident; smoothing is the opposite
    for name, row in (("test", rows[0]), ("focal", rows[2]), ("smoothing", rows[4])):
        p = files.read(folder / f"{name}.npz")
        assert p.logits is not None
        assert row["accuracy"] == pytest.approx(float((p.logits.argmax(-1) == p.labels).double().mean()), abs=1e-12)
        assert {"auroc", "ece", "nll"} <= set(row)


@pytest.mark.parametrize(("part", "name"), [("before", "test"), ("after", "calibrated")])
def test_numbers_are_those_of_the_files(demo: Demo, part: str, name: str) -> None:
    folder, result = demo
    with np.load(folder / f"{name}.npz") as data:
        logits, labels = data["logits"].astype(float), data["labels"]
    probs, reported = softmax(logits, -1), {k: v["value"] for k, v in result[part]["metrics"].items()}
    correct = probs.argmax(-1) == labels
    assert reported["accuracy"] == pytest.approx(correct.mean(), abs=1e-12)
    assert reported["nll"] == pytest.approx(log_loss(labels, probs), rel=1e-9)
    assert reported["gap"] == pytest.approx(probs.max(-1).mean() - correct.mean(), abs=1e-12)
    others = np.sort(log_softmax(logits, -1))[:, :-1]
    assert reported["auroc"] == pytest.approx(roc_auc_score(correct, -np.log(np.exp(others).sum(-1))), abs=1e-12)


def test_is_overconfident_until_recalibrated(demo: Demo) -> None:
    _, result = demo
    before, after = ({k: v["value"] for k, v in result[p]["metrics"].items()} for p in ("before", "after"))
    assert before["gap"] > 0.03 and abs(after["gap"]) < 0.02
    assert after["nll"] < before["nll"] and after["ece"] < before["ece"]


def test_says_where_the_report_is(
    demo: Demo, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fit = demo_module.fit
    monkeypatch.setattr(demo_module, "fit", lambda method, p, seed: fit("temperature", p, seed=seed))  # quicker
    shutil.copytree(demo[0] / "runs", tmp_path / "here" / "runs")
    assert run(["demo", "-o", str(tmp_path / "here")]) == 0
    out = capsys.readouterr().out.replace("\n", "")
    assert "here/report.html" in out and "recalibrated" in out and "+ temperature" in out and "ece" in out


def test_a_file_where_the_folder_should_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    assert run(["demo", "-o", str(tmp_path / "taken")]) == 2
    assert "taken is a file; name a folder" in capsys.readouterr().err
