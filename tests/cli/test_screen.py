"""What a terminal shows: six numbers, tables of 80 columns, and after `next:` a command that runs when it is pasted."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import calibrant
from calibrant import files, predictions
from calibrant.cli import run
from calibrant.display import HEADLINE
from calibrant.metrics import METRICS
from tests.cli.commands import Refused

R = np.random.default_rng(0)
Said = Callable[..., str]


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """Run a command on overconfident predictions and return its stdout, in 80 columns by default."""
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    rng = np.random.default_rng(0)
    for part, scale in (("test", 3.0), ("calibration", 3.0), ("soft", 1.0)):
        z = rng.normal(size=(300, 4))
        y = (z + rng.gumbel(size=z.shape)).argmax(1)
        split = "calibration" if part == "calibration" else "test"
        files.write(f"run/{part}.npz", predictions(scale * z, y, split=split))

    def command(*words: str, columns: int = 80) -> str:
        monkeypatch.setenv("COLUMNS", str(columns))
        code = run(words)
        got = capsys.readouterr()
        assert code == 0, got.err
        return got.out

    return command


def following(text: str) -> list[str]:
    """The command after `next:`, as a shell would read it."""
    (line,) = [line for line in text.splitlines() if line.startswith("next: ")]
    assert "#" not in line and "?" not in line  # zsh takes a comment for words and ? for a file
    return shlex.split(line.removeprefix("next: calibrant "))


def test_six_numbers_and_all_on_request(said: Said) -> None:
    first = [line.split()[0] for line in said("audit", "run/test.npz").splitlines() if line]
    assert [word for word in first if word in METRICS] == list(HEADLINE) and len(HEADLINE) == 6
    assert set(METRICS) <= set(said("audit", "run/test.npz", "--all", "--no-intervals").split())
    assert set(METRICS) == set(json.loads(said("audit", "run/test.npz", "--json", "--no-intervals"))[0]["metrics"])
    asked = said("audit", "run/test.npz", "--metrics", "ks,ece", "--no-intervals")
    assert "ks" in asked.split() and "nll" not in asked.split()
    pair = said("compare", "run/test.npz", "run/test.npz", "--replicates", "50")
    assert "auroc" in pair and "fpr95" not in pair and "14 more: --all" in pair


def test_next_leads_from_an_audit_to_calibrated_predictions(said: Said) -> None:
    fit = following(said("audit", "run/test.npz"))
    assert fit == ["fit", "run/calibration.npz", "-o", "map"]
    apply = following(said(*fit, "--method", "temperature"))
    assert apply == ["apply", "map", "run/test.npz", "-o", "calibrated.npz"]
    said(*apply)
    report = following(said("audit", "calibrated.npz"))
    assert report == ["audit", "calibrated.npz", "--html", "report.html"]


def test_next_without_held_out_predictions_fits_on_half_of_the_items(said: Said) -> None:
    Path("run/test.npz").rename("mine.npz")
    advise = following(said("audit", "mine.npz", "--metrics", "accuracy,gap"))
    assert advise == ["audit", "mine.npz", "--advise"]
    told = following(said(*advise, "--no-intervals"))
    assert told[:2] == ["fit", "CALIBRATION"] and "--method" in told  # nothing can be known of that file
    told = following(said("audit", "mine.npz", "--calibration", "run/calibration.npz", "--no-intervals"))
    assert told[:2] == ["fit", "run/calibration.npz"]


@pytest.mark.parametrize(
    "words",
    [
        ["audit", "run/test.npz", "--all"],
        ["audit", "run/test.npz", "run/soft.npz"],
        ["audit", "run/test.npz", "--advise"],
        ["compare", "run/test.npz", "run/test.npz", "--all", "--replicates", "50"],
        ["fit", "run/calibration.npz", "--budget", "2", "--all"],
    ],
)
def test_tables_fit_eighty_columns(said: Said, words: list[str]) -> None:
    """No row is longer, and no word or number is broken. Commands may be longer."""
    narrow = said(*words)
    rows = [line.rstrip() for line in narrow.splitlines()]
    table = [row for row in rows if "  " in row.strip() and not row.startswith("next: ")]
    assert table and max(map(len, table)) <= 80
    if words[0] != "fit" and "--advise" not in words:  # what fits into a budget of seconds differs from run to run
        assert Counter(narrow.split()) == Counter(said(*words, columns=200).split())


def test_apply_says_what_it_did_in_one_line(said: Said) -> None:
    said("fit", "run/calibration.npz", "--method", "temperature", "-o", "map")
    text = said("apply", "map", "run/test.npz", "-o", "out.npz")
    assert text.startswith("out.npz: temperature applied to 300 items, NLL ") and text.count("\n") == 1
    said("decide", "run/calibration.npz", "--accept", "0.8", "-o", "rule")
    text = said("apply", "rule", "run/test.npz", "-o", "ruled.npz")
    assert text.startswith("ruled.npz: 300 items, ") and "% accepted" in text and text.count("\n") == 1


def test_after_a_fit_on_pixels(said: Said) -> None:
    for name in ("calibration.npz", "test.npz"):
        y = R.integers(0, 3, (4, 6, 6))
        y[:, 0] = 255
        np.savez(name, logits=R.normal(size=(4, 3, 6, 6)), labels=y)
    pixels = ["--class-axis", "1", "--ignore-index", "255"]
    command = following(said("fit", "calibration.npz", *pixels, "--method", "temperature", "-o", "map"))
    assert command == ["apply", "map", "test.npz", "-o", "calibrated.npz", *pixels]
    assert run(command) == 0 and np.load("calibrated.npz")["labels"].shape == (4 * 30,)


def test_after_a_fit_with_labels_in_another_file(said: Said) -> None:
    for name in ("calibration", "test"):
        np.save(f"{name}.npy", R.normal(size=(200, 3)))
    np.save("y.npy", R.integers(0, 3, 200))
    words = ("fit", "calibration.npy", "--labels", "y.npy", "--method", "temperature", "-o", "map")
    assert run(following(said(*words))) == 0  # the labels of the test are not known, and not needed


def test_after_an_audit_of_a_top_1_file_with_names_of_its_own(said: Said) -> None:
    for name in ("calibration", "test"):
        y, c = R.integers(0, 3, 500), np.full(500, 0.99) - 0.01 * R.random(500)
        np.savez(f"{name}.npz", p=y, c=c, labels=np.where(R.random(500) < 0.5, y, 0))
    keys = ("--predicted-key", "p", "--confidence-key", "c")
    command = following(said("audit", "test.npz", *keys))
    assert command == ["fit", "calibration.npz", "--method", "isotonic", "-o", "map", *keys]
    command = following(said(*command))
    assert command == ["apply", "map", "test.npz", "-o", "calibrated.npz", *keys]
    assert run(command) == 0 and Path("calibrated.npz").is_file()
    assert run(["decide", "calibration.npz", "--accept", "0.5", *keys]) == 0


def test_advise(said: Said) -> None:
    assert following(said("advise")) == ["advise", "METHOD"]


def test_a_group_of_verbs_alone_prints_its_help(said: Said) -> None:
    out = said("bench")
    assert out.startswith("Usage: calibrant bench") and "\n  merge " in out


def test_a_run_folder_and_names_as_labels(said: Said, refused: Refused) -> None:
    refused(["audit", "run"], str(Path("run/test.npz")))
    np.savez("words.npz", logits=R.normal(size=(2, 2)), labels=["cat", "dog"])
    refused(["audit", "words.npz"], "an array `classes` in a file")


@pytest.mark.parametrize("name", ["advise", "plan"])
def test_a_name_at_the_wrong_place_gets_the_line_to_import_it(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"did you mean from calibrant\..* import {name}\?") as told:
        getattr(calibrant, name)
    exec(str(told.value).split("did you mean ")[1].removesuffix("?"))
