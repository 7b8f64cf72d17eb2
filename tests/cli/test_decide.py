"""`calibrant decide`, and `apply` and `audit` with its rule: output, JSON, and which folders are replaced."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import calibrant
from tests.cli.test_fit_apply import call, make


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
    for name in ("o.npz", "o.safetensors", "o.parquet", "o.csv"):
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
    test = make(tmp_path / "test.npz", 1, "test")
    assert call(capsys, "apply", tmp_path / "rule", test, "-o", tmp_path / "o.npz")[0] == 0
    code, _, err = call(capsys, "decide", preds, "--threshold", 1)
    assert code == 2 and f"{preds}: no item has a confidence of 1 or more" in err


def test_a_folder_is_replaced_only_by_its_kind(preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "fit", preds, "--method", "temperature", "-o", tmp_path / "map")[0] == 0
    code, _, err = call(capsys, "decide", preds, "--accept", 0.5, "-o", tmp_path / "map")
    assert code == 2 and "holds a fitted map, not a decision rule" in err
    assert call(capsys, "decide", preds, "--accept", 0.5, "-o", tmp_path / "rule")[0] == 0
    code, _, err = call(capsys, "fit", preds, "--method", "temperature", "-o", tmp_path / "rule")
    assert code == 2 and "holds a decision rule, not a fitted map" in err
    code, _, err = call(capsys, "decide", preds, "--accept", 0.5, "--map", tmp_path / "rule")
    assert code == 2 and "holds a decision rule, not a fitted map" in err
    header = tmp_path / "rule" / "rule.json"
    header.write_text(header.read_text().replace('"n": 3000', '"n": 3001'))
    code, _, err = call(capsys, "apply", tmp_path / "rule", preds, "-o", tmp_path / "o.npz")
    assert code == 2 and "was edited" in err and "choose the rule again" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give one of"),
        (("--accuracy", "1.5"), "accuracy=1.5"),
        (("--accuracy", "0.99"), "the best reachable"),
        (("--accuracy", "0.9999"), "are needed"),
        (("--accuracy", "0.7", "--by", "group"), "no groups"),
    ],
)
def test_one_line_and_exit_2(
    preds: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str
) -> None:
    code, out, err = call(capsys, "decide", preds, *words)
    assert code == 2 and out == "" and err.count("\n") == 1 and message in err


def test_sets_and_costs(preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule, out_file = tmp_path / "rule", tmp_path / "o.npz"
    code, out, _ = call(capsys, "decide", preds, "--set-coverage", 0.9, "--method", "raps", "--k-reg", 1, "-o", rule)
    assert (
        code == 0 and out.startswith("raps sets contain the truth with probability 90% or more") and "Beta(2701" in out
    )
    code, out, _ = call(capsys, "apply", rule, preds, "-o", out_file, "--json")
    assert code == 0 and 1 < json.loads(out)["set_size"] < 3 and np.load(out_file)["sets"].shape == (3000, 3)
    prices = tmp_path / "costs.csv"
    prices.write_text("class,a,b,c,abstain\n0,0,5,5,1\n1,1,0,1,1\n2,1,1,0,1\n".replace("0,0,5", "x,0,5"))
    code, _, err = call(capsys, "decide", preds, "--costs", prices)
    assert code == 2 and err.count("\n") == 1
    prices.write_text("a,b,c,abstain\n0,5,5,0.1\n1,0,1,0.1\n1,1,0,0.1\n")
    code, out, _ = call(capsys, "decide", preds, "--costs", prices, "-o", rule)
    assert code == 0 and out.startswith("the cheapest of 4 actions costs ")
    assert call(capsys, "apply", rule, preds, "-o", out_file)[0] == 0 and np.load(out_file)["action"].max() == 3
    prices.write_text("a,b\n0,5\n1,0\n")
    code, _, err = call(capsys, "decide", preds, "--costs", prices)
    assert code == 2 and f"{prices}: 2 rows; the predictions have 3 classes" in err and err.count("\n") == 1
    code, _, err = call(capsys, "decide", preds, "--set-coverage", 0.9999)
    assert code == 2 and "9999 are needed" in err


def test_audit_judges_the_rule(preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    code, _, err = call(capsys, "audit", preds, "--rule", rule, "--no-intervals")
    assert code == 2 and "the rule was chosen on these very items" in err and err.count("\n") == 1
    code, _, err = call(capsys, "audit", test, "--rule", tmp_path / "nothing")
    assert code == 2 and err.count("\n") == 1


def test_a_loss_file(preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = tmp_path / "loss.csv"
    losses.write_text("truth,a,b,c\na,0,1,2\nb,1,0,1\nc,2,1,0\n")
    code, out, _ = call(capsys, "decide", preds, "--risk", 0.6, "--loss", losses)
    assert code == 0 and "mean loss of accepted answers is at most 0.6" in out
    losses.write_text("0,1\n1,x\n")
    code, _, err = call(capsys, "decide", preds, "--risk", 0.6, "--loss", losses)
    assert code == 2 and "line 2 has 'x'" in err


def test_columns_of_a_loss_are_matched_by_class(
    preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns may have any order, like rows, but only the names of the classes."""
    losses, said = tmp_path / "loss.csv", []
    for text in (
        "class,0,1,2\n0,0,1,4\n1,2,0,1\n2,3,1,0\n",
        "class,2,0,1\n2,0,3,1\n0,4,0,1\n1,1,2,0\n",
        "a,b,c\n0,1,4\n2,0,1\n3,1,0\n",  # the predictions name no classes: in order
        "truth,c,a,b\na,4,0,1\nb,1,2,0\nc,0,3,1\n",
    ):
        losses.write_text(text)
        code, out, err = call(capsys, "decide", preds, "--risk", 0.9, "--loss", losses)
        assert code == 0, err
        said.append(out)
    assert len(set(said)) == 1
    losses.write_text("class,0,1,7\n0,0,1,4\n1,2,0,1\n2,3,1,0\n")
    code, _, err = call(capsys, "decide", preds, "--risk", 0.9, "--loss", losses)
    assert code == 2 and "the columns are named 0, 1, 7, and the classes are 0, 1, 2" in err and err.count("\n") == 1
    losses.write_text("0,1,9\n1,0,9\n1,1,0\n")
    code, _, err = call(capsys, "decide", preds, "--risk", 0.01, "--loss", losses)
    assert code == 2 and "allow more on other items" in err


def test_names_of_groups_survive_a_file(tmp_path: Path) -> None:
    z, y = np.random.default_rng(0).normal(size=(6, 3)), [0, 1, 2, 0, 1, 2]
    p = calibrant.predictions(z, y, group=["b", "a", "b", "c", "c", "a"])
    for suffix in ("npz", "safetensors", "parquet", "csv"):
        path = calibrant.files.write(tmp_path / f"p.{suffix}", p)
        again = calibrant.files.read(path)
        assert again.group_names == ("a", "b", "c") and again.group.tolist() == p.group.tolist()


def test_rows_of_costs_are_matched_by_class(preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows may have any order, and a column `class` of numbers is not an action."""
    prices, said = tmp_path / "costs.csv", []
    for text in ("a,b\n0,5\n1,0\n2,3\n", "class,a,b\n2,2,3\n0,0,5\n1,1,0\n"):
        prices.write_text(text)
        code, out, _ = call(capsys, "decide", preds, "--costs", prices)
        assert code == 0 and out.startswith("the cheapest of 2 actions")
        said.append(out)
    assert said[0] == said[1]
    prices.write_text("class,a,b\n0,0,5\n1,1,0\n7,2,3\n")
    code, _, err = call(capsys, "decide", preds, "--costs", prices)
    assert code == 2 and "the rows are named 0, 1, 7, and the classes are 0, 1, 2" in err and err.count("\n") == 1


def test_sets_under_shift(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    for more, message in (
        (("--weights", "nothing"), "no key 'nothing'"),
        ((), "one of --weights COLUMN and --adaptive STEP"),
        (("--adaptive", 2), "step=2"),
    ):
        code, _, err = call(capsys, *words, *more)
        assert code == 2 and message in err and err.count("\n") == 1
    assert call(capsys, "decide", cal, "--accept", 0.5, "-o", rule)[0] == 0
    code, _, err = call(capsys, *words, "--weights", "weight")
    assert code == 2 and "need a rule of sets" in err


def test_sets_under_shift_refuse_what_they_cannot_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for name, n in (("cal", 600), ("new", 200)):
        z, y = 3 * rng.normal(size=(n, 4)), rng.integers(0, 4, n)
        np.savez(tmp_path / name, logits=z, labels=y, weight=1 + rng.random(n))
        np.savez(tmp_path / f"{name}_groups", logits=z, labels=y, weight=np.ones(n), group=np.arange(n) // 3)
    cal, new, rule = (tmp_path / name for name in ("cal.npz", "new.npz", "rule"))
    goal, ends = ("--set-coverage", 0.8), (("--weights", "weight"), ("--adaptive", 0.05))
    for words in ((cal, *goal, "--guarantee", 0.9), (tmp_path / "cal_groups.npz", *goal)):
        assert call(capsys, "decide", *words, "-o", rule)[0] == 0
        for end in ends:
            words = ("apply", rule, new, "--calibration", cal, *end, "-o", tmp_path / "o.npz")
            code, _, err = call(capsys, *words)
            assert code == 2 and "cannot keep a guarantee or a promise about groups" in err
    assert call(capsys, "decide", cal, *goal, "-o", rule)[0] == 0
    for known, end, message in (
        (tmp_path / "cal_groups.npz", ends[0], "calibration items come in groups"),
        (tmp_path / "cal_groups.npz", ends[1], "calibration items come in groups"),
        (cal, (*ends[0], "--ignore-index", 3), "--ignore-index drops rows"),
        (new, ends[0], "holds the calibration items"),
        (new, ends[1], "holds the calibration items"),
    ):
        words = ("apply", rule, new, "--calibration", known, *end, "-o", tmp_path / "o.npz")
        code, _, err = call(capsys, *words)
        assert code == 2 and message in err and err.count("\n") == 1
