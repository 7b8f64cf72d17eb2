"""A newcomer's mistakes: the message names the probable cause and the remedy, and nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import calibrant
from calibrant.cli import run
from calibrant.errors import CalibrantError

RNG = np.random.default_rng(0)
Z = RNG.normal(size=(200, 3))
Y = RNG.integers(0, 3, 200)
P = np.exp(Z) / np.exp(Z).sum(1, keepdims=True)
QUICK = ["--no-intervals", "--metrics", "accuracy,gap,nll"]

Said = Callable[..., tuple[int, str, str]]


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    """Run a command in an empty folder: exit code, stdout and stderr with single spaces."""
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> tuple[int, str, str]:
        code = run(words)
        got = capsys.readouterr()
        return code, " ".join(got.out.split()), " ".join(got.err.split())

    return command


MISTAKES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "labels from 1": ({"logits": Z, "labels": Y + 1}, ["labels must be in 0…2", "run from 1 to 3: subtract 1"]),
    "a label that marks": ({"logits": Z, "labels": np.where(Y == 2, -100, Y)}, ["ignore_index=-100", "--ignore-index"]),
    "transposed": ({"logits": Z.T, "labels": Y}, ["3 rows of scores but 200 labels", "transposed"]),
    "many NaN": ({"logits": np.where(Z > 1, np.nan, Z), "labels": Y}, ["has nan (the first of", "such rows)"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_file_gets_a_remedy(said: Said, name: str) -> None:
    arrays, words = MISTAKES[name]
    np.savez("x.npz", **arrays)
    code, out, err = said("audit", "x.npz")
    assert code == 2 and out == "" and err.startswith("calibrant: x.npz: ")
    for word in words:
        assert word in err


def test_a_csv_with_class_names_as_columns_gets_the_expected_names(said: Said) -> None:
    Path("x.csv").write_text("cat,dog,label\n0.5,0.5,0\n")
    code, _, err = said("audit", "x.csv")
    assert code == 2 and "columns found: cat, dog, label" in err and "prob_cat" in err


def test_probabilities_saved_as_logits_get_a_note_and_are_unchanged(said: Said) -> None:
    np.savez("x.npz", logits=P, labels=Y)
    code, out, _ = said("audit", "x.npz", *QUICK)
    assert code == 0 and "look like probabilities" in out and "--probs-key" in out
    _, text, _ = said("audit", "x.npz", "--json", *QUICK)
    found = json.loads(text)[0]
    assert len(found["notes"]) == 1
    said("audit", "x.npz", "--html", "x.html", *QUICK)
    page = Path("x.html").read_text("utf-8")
    assert "look like probabilities" in page and "--probs-key" in page, "the page says it too"
    logp = P - np.log(np.exp(P).sum(1, keepdims=True))  # read as logits all the same
    assert found["metrics"]["nll"]["value"] == pytest.approx(-logp[np.arange(200), Y].mean())


@pytest.mark.parametrize("arrays", [{"logits": Z}, {"probs": P}, {"logits": np.abs(Z)}])
def test_other_scores_get_no_note(said: Said, arrays: dict[str, Any]) -> None:
    np.savez("x.npz", labels=Y, **arrays)
    code, out, _ = said("audit", "x.npz", *QUICK)
    assert code == 0 and "note" not in out
    assert "notes" not in json.loads(said("audit", "x.npz", "--json", *QUICK)[1])[0]


def test_labels_of_probability_zero_are_counted_with_their_share_of_the_nll(said: Said) -> None:
    """A random forest gives 0 to classes that it has not seen."""
    p = np.full((200, 4), 1 / 3)
    p[:, 3] = 0
    y = np.where(np.arange(200) < 3, 3, 0)
    np.savez("x.npz", probs=p, labels=y)
    code, out, _ = said("audit", "x.npz", *QUICK)
    assert code == 0 and "3 items give their label a probability of 1e-30 or less" in out
    assert f"which adds {3 * 30 * np.log(10) / 200:.4f} to the NLL" in out


def test_a_verdict_that_is_missing_names_only_what_is_missing(said: Said) -> None:
    np.savez("x.npz", logits=Z, labels=Y)
    assert "not judged: gap was not computed" in said("audit", "x.npz", "--metrics", "accuracy", "--no-intervals")[1]
    both = "not judged: accuracy and gap were not computed"
    assert both in said("audit", "x.npz", "--metrics", "ece", "--no-intervals")[1]


def test_one_metric_within_noise_is_named(said: Said) -> None:
    np.savez("a.npz", logits=Z, labels=Y)
    np.savez("b.npz", logits=20 * Z, labels=Y)
    _, out, _ = said("compare", "a.npz", "b.npz", "--metrics", "accuracy,nll", "--replicates", "100")
    assert "worse in nll; within noise in accuracy (" in out


def test_rows_of_a_ranking_are_distinct() -> None:
    from calibrant.cli.fit import ranked
    from calibrant.posthoc import CALIBRATORS

    tried = [(name, settings, cls) for name, cls in CALIBRATORS.items() for settings in cls.candidates]
    rows = [{"method": name, "settings": vars(cls(**settings)), "status": "ran"} for name, settings, cls in tried]
    shown = [ranked(row)["method"] for row in rows]
    assert len(shown) == len(set(shown)) > len(CALIBRATORS)


def test_a_folder_that_is_not_a_map_is_named(tmp_path: Path) -> None:
    ensemble = calibrant.PEP(torch.nn.Linear(3, 2), 0.1).save(tmp_path / "pep")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.npz").write_text("")
    for folder, words in (
        (ensemble, "calibrant.PEP.load("),
        (tmp_path / "run", "calibrant.training.load("),
        (tmp_path / "empty", "holds no fitted map: map.json is missing"),
        (tmp_path / "file.npz", "is a file, not a folder"),
    ):
        with pytest.raises(CalibrantError) as caught:
            calibrant.load(folder)
        assert words in str(caught.value) and str(folder) in str(caught.value)


def test_the_advice_says_whether_answers_may_change() -> None:
    from calibrant.report.steps import next_steps

    whole = next_steps(calibrant.evaluate(30 * Z, Y, metrics=["accuracy", "gap"]))[0]
    top1 = calibrant.predictions(labels=Y, predicted=np.zeros(200, int), confidence=np.full(200, 0.99))
    kept = next_steps(calibrant.evaluate(top1, metrics=["accuracy", "gap"]))[0]
    assert "--method" not in str(whole.command) and "may change some answers" in whole.text
    assert "isotonic" in str(kept.command) and "keeps every answer" in kept.text
