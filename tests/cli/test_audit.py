"""`calibrant audit`: the JSON that scripts rely on, the words for people, the gates, the report, the stream."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrant import files
from calibrant.cli import audit_inputs, run
from calibrant.display import HEADLINE
from calibrant.functional.inputs import predictions
from calibrant.metrics.evaluate import evaluate
from calibrant.posthoc.advise import Advice, advise, halves
from calibrant.report import numbers


def write(path: Path, n: int = 400, seed: int = 0, sharpness: float = 3.0, split: str = "test") -> Path:
    """Overconfident predictions: the labels are drawn from a softer softmax than that of the logits."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 4))
    y = (z + rng.gumbel(size=z.shape)).argmax(1)
    return files.write(path, predictions((z * sharpness).astype(np.float32), y, split=split))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    write(tmp_path / "a.npz")
    return tmp_path


def audited(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    code = run(["audit", *argv, "--json"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    found: list[dict[str, Any]] = json.loads(out)
    return found


def test_json_is_what_scripts_rely_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here / "b.parquet", seed=1)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/calibrant", "audit", "a.npz", "b.parquet", "--json"])
    one, two = audited(capsys, "a.npz", "b.parquet")
    assert [one["file"], two["file"]] == ["a.npz", "b.parquet"]
    assert {"schema", "file", "n", "k", "conventions", "metrics"} <= set(one)
    assert set(one["made"]) == {"command", "version", "commit"}
    assert one["made"]["command"] == "calibrant audit a.npz b.parquet --json"
    assert (one["n"], one["k"], one["conventions"]["bins"], one["conventions"]["split"]) == (400, 4, 15, "test")
    promised = "accuracy nll brier ece ece_mass ece_classwise ece_max ece_over ece_under ece_debiased ks gap"
    promised += " auroc aupr_success aupr_error aurc eaurc fpr95"
    assert set(promised.split()) <= set(one["metrics"])
    for name, e in one["metrics"].items():
        assert {"value", "low", "high"} <= set(e) and e["low"] <= e["high"], name


def test_intervals_metrics_bins_and_the_seed_are_chosen(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = audited(capsys, "a.npz", "--no-intervals")
    assert all(e["low"] is None and e["high"] is None and e["value"] is not None for e in found["metrics"].values())
    (found,) = audited(capsys, "a.npz", "--metrics", "ece, auroc", "--bins", "10", "--seed", "3")
    assert list(found["metrics"]) == ["ece", "auroc"] and found["conventions"]["bins"] == 10
    (again,) = audited(capsys, "a.npz", "--metrics", "ece,auroc", "--bins", "10", "--seed", "3")
    assert again == found


def test_two_classes_state_which_confidence_is_judged(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("b.npz", probs=np.array([0.2, 0.7, 0.9, 0.4]), labels=[0, 1, 1, 1])
    assert run(["audit", "b.npz", "--no-intervals"]) == 0
    assert "top label (--about positive for class 1)" in " ".join(capsys.readouterr().out.split())
    assert run(["audit", "b.npz", "--about", "positive", "--no-intervals"]) == 0
    assert "confidence in the positive class" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("gates", "code", "words"),
    [
        (["ece > 0.9", "accuracy == 2", "gap.low <= -1"], 0, []),
        (["ece.value < 0.9"], 3, ["'ece.value < 0.9'", "ece.value is 0.", "a.npz"]),
        (["ece.high>0.01", "nll > 100"], 3, ["'ece.high>0.01'", "ece.high is"]),
        (["accuracy >= .0", "gap != 1e-3"], 3, ["'accuracy >= .0'", "'gap != 1e-3'"]),
    ],
)
def test_gates(here: Path, capsys: pytest.CaptureFixture[str], gates: list[str], code: int, words: list[str]) -> None:
    argv = [part for text in gates for part in ("--fail-if", text)]
    assert run(["audit", "a.npz", "--json", *argv]) == code
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["n"] == 400  # everything is printed first
    assert len(err.splitlines()) == (1 if code else 0)
    assert all(word in err for word in words), err


def test_a_gate_on_a_missing_value_fails(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez("right.npz", logits=np.eye(3), labels=[0, 1, 2])
    assert run(["audit", "right.npz", "--fail-if", "auroc < 0.5"]) == 3
    assert "auroc.value does not exist (all predictions are correct" in capsys.readouterr().err
    assert run(["audit", "a.npz", "--no-intervals", "--fail-if", "ece.high > 0.5"]) == 3
    assert "ece.high does not exist (no interval was computed)" in capsys.readouterr().err


def test_the_report_is_written_before_a_gate_fails(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "a.npz", "--html", "r.html", "--no-intervals", "--fail-if", "nll > 0"]) == 3
    assert "r.html" in capsys.readouterr().out and "a.npz" in (here / "r.html").read_text()


@pytest.mark.parametrize("separate", [False, True])
def test_before_and_after_on_the_page_are_the_same_items(
    here: Path, separate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --calibration only a half of the items is judged, before and after."""
    told: list[Advice] = []
    monkeypatch.setattr("calibrant.posthoc.advise.advise", lambda *a, **kw: told.append(advise(*a, **kw)) or told[0])
    write(here / "c.npz", seed=1, split="calibration")
    assert run(["audit", "a.npz", "--html", "r.html", *(["--calibration", "c.npz"] if separate else [])]) == 0
    page = (here / "r.html").read_text("utf-8")
    judged = files.read("a.npz")
    judged = judged if separate else halves(judged, 0)[1]
    assert told[0].after is not None and judged.n == (400 if separate else 200)

    table = page[page.index("Judged on ") :].partition("</table>")[0]
    assert table.startswith(f"Judged on {judged.n} items")
    cells = re.findall(r'<td class="num">\s*(?:<span[^>]*>)?\s*([^<\s]+)', table)
    reports = [evaluate(x, intervals=False) for x in (judged, told[0].after)]
    names = [name for name in HEADLINE if name in reports[0]]
    assert cells == [numbers.value(name, r[name].value).split()[0] for name in names for r in reports]

    figure = page[page.index("reliability before and after recalibration") :].partition("</svg>")[0]
    tips = re.findall(r"confidence ([\d.]+) to [\d.]+: (\d+) items", figure)
    second = next(i for i in range(1, len(tips)) if float(tips[i][0]) < float(tips[i - 1][0]))
    assert [sum(int(n) for _, n in side) for side in (tips[:second], tips[second:])] == [judged.n, judged.n]


def test_two_files_side_by_side_with_a_paired_comparison(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(here / "b.npz", sharpness=1.0)
    assert run(["audit", "a.npz", "b.npz", "--metrics", "nll,ece,accuracy"]) == 0
    out = capsys.readouterr().out
    assert out.count("a.npz") >= 2 and out.count("b.npz") >= 2
    assert "better" in out or "worse" in out
    write(here / "c.npz", seed=5)  # other items: nothing to pair
    assert run(["audit", "a.npz", "c.npz", "--metrics", "nll"]) == 0


def test_reuse_must_be_allowed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    p = files.read("a.npz")
    files.write("fitted.npz", replace(p, fitted_on=p.fingerprint(), origin=p.fingerprint()))
    assert run(["audit", "fitted.npz"]) == 2
    assert "fitted on the same items" in capsys.readouterr().err
    (found,) = audited(capsys, "fitted.npz", "--allow-reuse")
    assert "allow_reuse" in found["conventions"]
    assert run(["audit", "fitted.npz", "--allow-reuse"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "--allow-reuse: the map was fitted on these items, so the numbers flatter it" in printed


def test_large_parquet_is_streamed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = here / "parts"
    folder.mkdir()
    for i in range(3):
        write(folder / f"part-{i}.parquet", n=600, seed=i)
    (whole,) = audited(capsys, "parts")
    assert "streamed" not in whole["conventions"]
    monkeypatch.setattr(audit_inputs, "ROWS_IN_MEMORY", 1000)
    (streamed,) = audited(capsys, "parts")
    assert "streamed" in streamed["conventions"] and streamed["n"] == 1800
    for name, e in streamed["metrics"].items():
        bound = streamed["extras"]["stream"]["bounds"][name]
        assert abs(e["value"] - whole["metrics"][name]["value"]) <= bound + 1e-12, name
    (exact,) = audited(capsys, "parts", "--exact", "--workers", "2")
    assert all(abs(e["value"] - whole["metrics"][n]["value"]) < 1e-12 for n, e in exact["metrics"].items())
    assert run(["audit", "parts", "--html", "r.html"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "streamed in one pass; exact but for" in out and "auroc ±" in out


def test_names_of_a_top1_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    c, right = np.array([0.9, 0.8, 0.6, 0.7]), np.array([1, 1, 0, 1])
    np.savez(here / "top.npz", net__label=right, net__pred=np.ones(4, int), net__conf=c)
    keys = ("--labels-key", "net__label", "--predicted-key", "net__pred", "--confidence-key", "net__conf")
    (found,) = audited(capsys, "top.npz", *keys, "--no-intervals")
    assert found["k"] is None and found["metrics"]["gap"]["value"] == pytest.approx(0.0)
    assert found["metrics"]["nll"]["value"] is None and "top-1" in found["metrics"]["nll"]["reason"]
    assert run(["audit", "top.npz", *keys[:4]]) == 2
    assert "--confidence-key" in capsys.readouterr().err
    assert run(["compare", "top.npz", "top.npz", *keys, "--metrics", "ece", "--json"]) == 0


def test_calibration_items_need_only_logits_and_labels(here: Path) -> None:
    held = dict(np.load("a.npz"))
    top = {"net__pred": held["logits"].argmax(1), "net__conf": np.full(len(held["labels"]), 0.5)}
    np.savez("both.npz", **held, **top)
    write(here / "c.npz", seed=1, split="calibration")
    keys = ("--predicted-key", "net__pred", "--confidence-key", "net__conf")
    assert run(["audit", "both.npz", *keys, "--calibration", "c.npz", "--no-intervals"]) == 0


def test_a_path_that_the_system_refuses_is_one_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("no /proc, the folder in which not even root can make a file")
    assert run(["audit", "a.npz", "--no-intervals", "--html", "/proc/report.html"]) in (1, 2)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("calibrant: /proc/report.html: ") and err.count("\n") == 1
