"""`calibrant decide`, and `apply` and `audit` with its rule: output, JSON, and which folders are replaced."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import calibrant
from tests.cli.commands import Refused, call, make


@pytest.fixture
def preds(tmp_path: Path) -> Path:
    return make(tmp_path / "calibration.npz", 0, "calibration", n=3000)


def test_decide_and_apply(preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "decide", preds, "--accuracy", 0.7, "-o", tmp_path / "rule")
    assert code == 0 and out.startswith("accept when confidence ≥ ") and f"written to {tmp_path / 'rule'}" in out
    code, out, _ = call(capsys, "decide", preds, "--accuracy", 0.7, "-o", tmp_path / "rule", "--json")
    found = json.loads(out)
    assert code == 0 and found["rule"] == "threshold" and found["promise"]["guarantee"] == 0.95
    test = make(tmp_path / "test.npz", 1, "test")
    for name in ("o.csv", "o.npz"):
        code, out, _ = call(capsys, "apply", tmp_path / "rule", test, "-o", tmp_path / name, "--json")
        assert code == 0 and 0 < json.loads(out)["accepted"] < 1
    written = np.load(tmp_path / "o.npz")
    assert written["accepted"].dtype == bool and written["accepted"].mean() == json.loads(out)["accepted"]
    z = np.load(test)["logits"]
    rule = calibrant.load(tmp_path / "rule")
    assert (rule(z).accepted.numpy() == written["accepted"]).all()


def test_a_given_threshold(preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "decide", preds, "--threshold", 0.6, "-o", tmp_path / "rule")
    assert code == 0 and out.startswith("accept when confidence ≥ 0.6: ") and "given, not searched for" in out
    assert (calibrant.load(tmp_path / "rule")([[0.0, 0.1, 0.2]]).accepted.tolist()) == [False]


def test_sets_and_costs(preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule, out_file = tmp_path / "rule", tmp_path / "o.npz"
    code, out, _ = call(capsys, "decide", preds, "--set-coverage", 0.9, "--method", "raps", "--k-reg", 1, "-o", rule)
    assert code == 0 and "Beta(2701" in out
    assert out.startswith("raps sets contain the truth with probability 90% or more")
    code, out, _ = call(capsys, "apply", rule, preds, "-o", out_file, "--json")
    assert code == 0 and 1 < json.loads(out)["set_size"] < 3 and np.load(out_file)["sets"].shape == (3000, 3)
    prices = tmp_path / "costs.csv"
    prices.write_text("a,b,c,abstain\n0,5,5,0.1\n1,0,1,0.1\n1,1,0,0.1\n")
    code, out, _ = call(capsys, "decide", preds, "--costs", prices, "-o", rule)
    assert code == 0 and out.startswith("the cheapest of 4 actions costs ")
    assert call(capsys, "apply", rule, preds, "-o", out_file)[0] == 0 and np.load(out_file)["action"].max() == 3


def test_audit_judges_the_rule(
    preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    rule, test = tmp_path / "rule", make(tmp_path / "test.npz", 1, "test")
    page = tmp_path / "report.html"
    quick = ("--metrics", "accuracy,gap", "--no-intervals")
    assert call(capsys, "decide", preds, "--accuracy", 0.7, "-o", rule)[0] == 0
    code, out, _ = call(capsys, "audit", test, "--rule", rule, *quick)
    assert code == 0 and "accuracy of the accepted" in out and "in line with the promise" in out
    assert call(capsys, "decide", preds, "--set-coverage", 0.9, "-o", rule)[0] == 0
    code, out, _ = call(capsys, "audit", test, "--rule", rule, "--html", page, *quick)
    assert code == 0 and "sets that hold the truth" in out and "sets that hold the truth" in page.read_text()
    assert "What does the rule do to" in page.read_text()
    code, out, _ = call(capsys, "audit", test, "--rule", rule, "--json", "--no-intervals")
    found = json.loads(out)[0]["rule"]
    assert found["coverage"]["low"] < 0.9 < found["coverage"]["high"] and found["by_class"][0]["class"] == "0"
    refused(["audit", preds, "--rule", rule, "--no-intervals"], "the rule was chosen on these very items")
    refused(["audit", test, "--rule", tmp_path / "nothing"], "nothing")


LOSSES = (
    "class,0,1,2\n0,0,1,4\n1,2,0,1\n2,3,1,0\n",
    "class,2,0,1\n2,0,3,1\n0,4,0,1\n1,1,2,0\n",
    "a,b,c\n0,1,4\n2,0,1\n3,1,0\n",  # the predictions name no classes: in order
    "truth,c,a,b\na,4,0,1\nb,1,2,0\nc,0,3,1\n",
)
COSTS = ("a,b\n0,5\n1,0\n2,3\n", "class,a,b\n2,2,3\n0,0,5\n1,1,0\n")  # the column `class` is no action


@pytest.mark.parametrize(
    ("goal", "tables", "starts"),
    [
        (["--risk", "0.9", "--loss"], LOSSES, "accept"),
        (["--costs"], COSTS, "the cheapest of 2 actions"),
    ],
    ids=["loss", "costs"],
)
def test_rows_and_columns_of_a_table_are_matched_by_class(
    goal: list[str], tables: tuple[str, ...], starts: str, preds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, said = preds.with_name("table.csv"), set()
    for text in tables:
        table.write_text(text)
        code, out, err = call(capsys, "decide", preds, *goal, table)
        assert code == 0 and out.startswith(starts), err
        said.add(out)
    assert len(said) == 1


@pytest.mark.parametrize(
    ("goal", "text", "words"),
    [
        (["--costs"], "class,a,b,c,abstain\n0,x,5,5,1\n1,1,0,1,1\n2,1,1,0,1\n", "has 'x'"),
        (["--costs"], "a,b\n0,5\n1,0\n", "2 rows; the predictions have 3 classes"),
        (["--costs"], "class,a,b\n0,0,5\n1,1,0\n7,2,3\n", "the rows are named 0, 1, 7, and the classes are 0, 1, 2"),
        (["--risk", "0.6", "--loss"], "0,1\n1,x\n", "line 2 has 'x'"),
        (["--risk", "0.9", "--loss"], "class,0,1,7\n0,0,1,4\n1,2,0,1\n2,3,1,0\n", "the columns are named 0, 1, 7"),
        (["--risk", "0.01", "--loss"], "0,1,9\n1,0,9\n1,1,0\n", "allow more on other items"),
    ],
)
def test_a_wrong_table_is_one_line(goal: list[str], text: str, words: str, preds: Path, refused: Refused) -> None:
    table = preds.with_name("table.csv")
    table.write_text(text)
    refused(["decide", preds, *goal, table], words)


def test_names_of_groups_survive_a_file(tmp_path: Path) -> None:
    z, y = np.random.default_rng(0).normal(size=(6, 3)), [0, 1, 2, 0, 1, 2]
    p = calibrant.predictions(z, y, group=["b", "a", "b", "c", "c", "a"])
    for suffix in ("npz", "safetensors", "parquet", "csv"):
        path = calibrant.files.write(tmp_path / f"p.{suffix}", p)
        again = calibrant.files.read(path)
        assert again.group_names == ("a", "b", "c") and again.group.tolist() == p.group.tolist()


def test_sets_under_shift(tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    """`apply --weights` and `--adaptive` give what the Python objects give."""
    rng = np.random.default_rng(0)
    for name, n in (("cal", 600), ("new", 200)):
        z = 3 * rng.normal(size=(n, 4))
        np.savez(tmp_path / name, logits=z, labels=rng.integers(0, 4, n), weight=1 + rng.random(n))
    cal, new, rule, out_file = (tmp_path / name for name in ("cal.npz", "new.npz", "rule", "o.npz"))
    goal = ("--set-coverage", 0.8, "--method", "raps", "--penalty", 0.1, "--k-reg", 1)
    assert call(capsys, "decide", cal, *goal, "-o", rule)[0] == 0
    a, b = np.load(cal), np.load(new)
    settings = {"coverage": 0.8, "method": "raps", "penalty": 0.1, "k_reg": 1}
    words = ("apply", rule, new, "--calibration", cal, "-o", out_file)
    assert call(capsys, *words, "--weights", "weight")[0] == 0
    sets = calibrant.decisions.WeightedSets(a["logits"], a["labels"], weights=a["weight"], **settings)
    assert (np.load(out_file)["sets"] == sets(b["logits"], weights=b["weight"]).sets.numpy()).all()
    code, out, _ = call(capsys, *words, "--adaptive", 0.05)
    assert code == 0 and "hold the truth" in out
    stream = calibrant.decisions.AdaptiveSets(a["logits"], a["labels"], step=0.05, **settings)
    for i, row in enumerate(np.load(out_file)["sets"]):
        assert np.load(out_file)["level"][i] == stream.level if i < 5 else True
        d = stream(b["logits"][i : i + 1])
        assert d.sets is not None and d.sets[0].tolist() == row.tolist()
        stream.update(d, b["labels"][i : i + 1])
    refused([*words, "--weights", "nothing"], "no key 'nothing'")
    refused(words, "one of --weights COLUMN and --adaptive STEP")
    refused([*words, "--adaptive", 2], "step=2")
    assert call(capsys, "decide", cal, "--accept", 0.5, "-o", rule)[0] == 0
    refused([*words, "--weights", "weight"], "need a rule of sets")


def test_sets_under_shift_refuse_what_they_cannot_keep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    rng = np.random.default_rng(0)
    for name, n in (("cal", 600), ("new", 200)):
        z, y = 3 * rng.normal(size=(n, 4)), rng.integers(0, 4, n)
        np.savez(tmp_path / name, logits=z, labels=y, weight=1 + rng.random(n))
        np.savez(tmp_path / f"{name}_groups", logits=z, labels=y, weight=np.ones(n), group=np.arange(n) // 3)
    cal, groups, new, rule = (tmp_path / name for name in ("cal.npz", "cal_groups.npz", "new.npz", "rule"))
    goal, weights, adaptive = ("--set-coverage", 0.8), ("--weights", "weight"), ("--adaptive", 0.05)
    promise, grouped = "cannot keep a guarantee or a promise about groups", "calibration items come in groups"
    for chosen_on, known, option, words in (
        ((cal, *goal, "--guarantee", 0.9), cal, weights, promise),
        ((groups, *goal), cal, adaptive, promise),
        ((cal, *goal), groups, weights, grouped),
        ((cal, *goal), groups, adaptive, grouped),
        ((cal, *goal), cal, (*weights, "--ignore-index", 3), "--ignore-index drops rows"),
        ((cal, *goal), new, weights, "holds the calibration items"),
        ((cal, *goal), new, adaptive, "holds the calibration items"),
    ):
        assert call(capsys, "decide", *chosen_on, "-o", rule)[0] == 0
        refused(["apply", rule, new, "--calibration", known, *option, "-o", tmp_path / "o.npz"], words)
