"""The command after `next:` runs when it is pasted into any shell, for every way to read a file."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

import calibrant
from calibrant.cli import run

R = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def following(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    capsys.readouterr()
    assert run([*words]) == 0, capsys.readouterr().err
    (line,) = [each for each in capsys.readouterr().out.splitlines() if each.startswith("next: ")]
    assert "#" not in line and "?" not in line  # zsh takes a comment for words and ? for a file
    return shlex.split(line.removeprefix("next: calibrant "))


def test_after_a_fit_on_pixels(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("calibration.npz", "test.npz"):
        y = R.integers(0, 3, (4, 6, 6))
        y[:, 0] = 255
        np.savez(name, logits=R.normal(size=(4, 3, 6, 6)), labels=y)
    pixels = ["--class-axis", "1", "--ignore-index", "255"]
    command = following(capsys, "fit", "calibration.npz", *pixels, "--method", "temperature", "-o", "map")
    assert command == ["apply", "map", "test.npz", "-o", "calibrated.npz", *pixels]
    assert run(command) == 0 and np.load("calibrated.npz")["labels"].shape == (4 * 30,)


def test_after_a_fit_with_labels_apart(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("calibration", "test"):
        np.save(f"{name}.npy", R.normal(size=(200, 3)))
    np.save("y.npy", R.integers(0, 3, 200))
    words = ("fit", "calibration.npy", "--labels", "y.npy", "--method", "temperature", "-o", "map")
    assert run(following(capsys, *words)) == 0  # the labels of the test are not known, and not needed


def test_after_an_audit_of_a_top_1_file_with_names_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("calibration", "test"):
        y, c = R.integers(0, 3, 500), np.full(500, 0.99) - 0.01 * R.random(500)
        np.savez(f"{name}.npz", p=y, c=c, labels=np.where(R.random(500) < 0.5, y, 0))
    keys = ("--predicted-key", "p", "--confidence-key", "c")
    command = following(capsys, "audit", "test.npz", *keys)
    assert command == ["fit", "calibration.npz", "--method", "isotonic", "-o", "map", *keys]
    command = following(capsys, *command)
    assert command == ["apply", "map", "test.npz", "-o", "calibrated.npz", *keys]
    assert run(command) == 0 and Path("calibrated.npz").is_file()
    assert run(["decide", "calibration.npz", "--accept", "0.5", *keys]) == 0


def test_advise(capsys: pytest.CaptureFixture[str]) -> None:
    assert following(capsys, "advise") == ["advise", "METHOD"]


def test_a_group_of_verbs_alone_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: calibrant bench") and "\n  merge " in out


def test_other_names_and_a_run_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["evaluate", "test.npz"]) == 2
    assert "did you mean `calibrant audit`?" in capsys.readouterr().err
    Path("run1").mkdir()
    np.savez("run1/test.npz", logits=R.normal(size=(9, 3)), labels=R.integers(0, 3, 9))
    assert run(["audit", "run1"]) == 2
    assert str(Path("run1/test.npz")) in capsys.readouterr().err
    np.savez("words.npz", logits=R.normal(size=(2, 2)), labels=["cat", "dog"])
    assert run(["audit", "words.npz"]) == 2
    assert "an array `classes` in a file" in capsys.readouterr().err
    for name in ("advise", "plan"):
        with pytest.raises(AttributeError, match=rf"did you mean from calibrant\..* import {name}\?") as told:
            getattr(calibrant, name)
        exec(str(told.value).split("did you mean ")[1].removesuffix("?"))
