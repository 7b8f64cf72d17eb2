"""A command replaces only output of its own kind, and never one of its inputs."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import calibrant
from calibrant import PEP, files
from calibrant.cli import run
from calibrant.errors import FileError
from calibrant.files import outputs
from calibrant.training import How, read, train


@pytest.fixture
def preds(tmp_path: Path) -> Path:
    return make(tmp_path / "cal.npz")


def make(path: Path, n: int = 60) -> Path:
    g = np.random.default_rng(0)
    np.savez(path, logits=g.normal(size=(n, 3)).astype(np.float32), labels=g.integers(0, 3, n))
    return path


def parts(folder: Path, source: Path) -> Path:
    folder.mkdir()
    files.write(folder / "0.parquet", files.read(source))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def refused(capsys: pytest.CaptureFixture[str], folder: Path, words: str, *argv: object) -> None:
    """Assert exit code 2, one line with these words, and that no file below `folder` has changed."""
    before = content(folder)
    code = run([str(a) for a in argv])
    said = capsys.readouterr()
    assert code == 2 and said.out == "" and said.err.count("\n") == 1 and words in said.err, said.err
    assert content(folder) == before


def fit(preds: Path, out: Path) -> tuple[object, ...]:
    return "fit", preds, "--method", "temperature", "-o", out


def test_a_thesis_is_kept(preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    thesis = tmp_path / "p"
    thesis.mkdir()
    (thesis / "thesis.txt").write_text("x")
    refused(capsys, tmp_path, "thesis.txt", *fit(preds, thesis))
    (tmp_path / "hidden" / ".git").mkdir(parents=True)
    refused(capsys, tmp_path, ".git", *fit(preds, tmp_path / "hidden"))
    assert run([str(a) for a in fit(preds, tmp_path / "map")]) == 0
    capsys.readouterr()
    source = parts(tmp_path / "parts", preds)
    refused(capsys, tmp_path, "thesis.txt", "apply", tmp_path / "map", source, "-o", thesis)
    with pytest.raises(FileError, match=r"thesis\.txt"):
        PEP(nn.Linear(3, 3), 0.1).save(thesis)
    with pytest.raises(FileError, match=r"thesis\.txt"):
        calibrant.load(tmp_path / "map").save(thesis)
    assert content(thesis) == {"thesis.txt": b"x"}


def test_a_folder_is_replaced_by_its_own_kind_only(
    preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, source = tmp_path / "map", parts(tmp_path / "parts", preds)
    (tmp_path / "empty").mkdir()
    for out in (made, made, tmp_path / "empty"):  # twice: users give the same command again
        assert run([str(a) for a in fit(preds, out)]) == 0
    applied = ["apply", str(made), str(source), "-o", str(tmp_path / "applied")]
    assert run(applied) == 0 and run(applied) == 0
    PEP(nn.Linear(3, 3), 0.1).save(tmp_path / "pep")
    PEP(nn.Linear(3, 3), 0.2).save(tmp_path / "pep")
    assert PEP.load(tmp_path / "pep", nn.Linear(3, 3)).sigma == 0.2
    capsys.readouterr()
    refused(capsys, tmp_path, "holds an ensemble, not a fitted map", *fit(preds, tmp_path / "pep"))
    refused(capsys, tmp_path, "holds predictions in parts, not", *fit(preds, tmp_path / "applied"))
    refused(capsys, tmp_path, "holds a fitted map, not", *applied[:-1], tmp_path / "empty")
    refused(capsys, tmp_path, "0.parquet", *applied[:2], tmp_path / "applied", "-o", source)
    (made / "notes.txt").write_text("mine")
    refused(capsys, tmp_path, "notes.txt", *fit(preds, made))


def test_a_map_json_of_another_program_is_not_a_map(
    preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "game").mkdir()
    (tmp_path / "game" / "map.json").write_text('{"tiles": []}')
    refused(capsys, tmp_path, "map.json", *fit(preds, tmp_path / "game"))


def test_a_run_is_not_replaced(preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "run"
    train(read("digits/focal", ["epochs=1", "network.hidden=[4]"]), made, How(device="cpu", quiet=True))
    refused(capsys, made, "holds a training run, not a fitted map", *fit(preds, made))
    predicts = ["predict", made, "--data", "digits", "-o"]
    pep = ["--ensemble", "pep", "--sigma", "0.1", "--save"]
    refused(capsys, made, "also an input", *predicts, tmp_path / "o.npz", *pep, made)
    refused(capsys, made, "part of the input", *predicts, made / "test.npz")
    refused(capsys, made, "two outputs", *predicts, tmp_path / "o.npz", "--html", tmp_path / "o.npz")
    refused(capsys, made, "holds a training run, not a stress run", "stress", made, "-o", made)
    refused(capsys, made, "holds a training run, not the output of `calibrant demo`", "demo", "-o", made)
    out = made / "again.npz"
    for _ in range(2):  # a name of the user's own inside the run is fine, and so is giving the command again
        assert run([str(a) for a in [*predicts, out]]) == 0
    capsys.readouterr()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for command in (["train", "digits/focal"], ["stress", made, "--suite", "ood"], ["demo"]):
        refused(capsys, tmp_path / "mine", "thesis.txt", *command, "-o", tmp_path / "mine")


def test_an_output_is_never_an_input(preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, source = tmp_path / "map", parts(tmp_path / "parts", preds)
    assert run([str(a) for a in fit(preds, made)]) == 0
    link, folder_link, twin = tmp_path / "link.npz", tmp_path / "folder", tmp_path / "twin.npz"
    link.symlink_to(preds)
    folder_link.symlink_to(source)
    os.link(preds, twin)
    capsys.readouterr()
    for read_, written in ((link, preds), (preds, link), (preds, twin), (preds, preds)):
        refused(capsys, tmp_path, "also an input", "apply", made, read_, "-o", written)
    refused(capsys, tmp_path, "also an input", "apply", made, folder_link, "-o", source)
    refused(capsys, tmp_path, "also an input", "apply", made, source, "-o", made)
    refused(capsys, tmp_path, "part of the input", "apply", made, source, "-o", source / "out")
    refused(capsys, tmp_path, "part of the input", "apply", made, source, "-o", source / "1.parquet")
    refused(capsys, tmp_path, "holds the input", *fit(make(made / "inside.npz"), made))
    refused(capsys, tmp_path, "also an input", "audit", preds, "--html", preds)
    refused(capsys, tmp_path, "also an input", "audit", link, "--html", preds)
    refused(capsys, tmp_path, "also an input", "audit", twin, "--calibration", link, "--html", preds)
    refused(capsys, tmp_path, "part of the input", "export", made, "-o", made / "map.json")


def test_files_and_folders_do_not_replace_each_other(
    preds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, source = tmp_path / "map", parts(tmp_path / "parts", preds)
    assert run([str(a) for a in fit(preds, made)]) == 0
    (tmp_path / "file").write_text("x")
    (tmp_path / "o.npz").mkdir()
    (tmp_path / "link").symlink_to(made)
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "thesis.html").write_text("not a page")
    (tmp_path / "package.json").write_text('{"name": "mine"}')
    capsys.readouterr()
    inside = [p for p in tmp_path.iterdir() if p.name != "pipe.html"]
    kept = {p: content(p) if p.is_dir() else p.read_bytes() for p in inside}
    for words, argv in (
        ("is a file", fit(preds, tmp_path / "file")),
        ("is a link to", fit(preds, tmp_path / "link")),
        ("is a file", ("apply", made, source, "-o", tmp_path / "file")),
        ("is a folder", ("apply", made, preds, "-o", tmp_path / "o.npz")),
        ("is a folder", ("audit", preds, "--html", made)),
        ("device or a pipe", ("audit", preds, "--html", tmp_path / "pipe.html")),
        ("not an HTML page", ("audit", preds, "--html", tmp_path / "thesis.html")),
        ("not an exported map", ("export", made, "-o", tmp_path / "package.json")),
        ("shorter", ("audit", preds, "--html", tmp_path / ("a" * 250))),
        ("shorter", fit(preds, tmp_path / ("a" * 300))),
        ("does not exist", ("audit", preds, "--html", "a/" * 3000 + "b")),
        ("does not exist", ("audit", preds, "--html", tmp_path / ("a" * 300) / "b")),
    ):
        code = run([str(a) for a in argv])
        said = capsys.readouterr()
        assert code == 2 and said.err.count("\n") == 1 and words in said.err, (argv, said.err)
    assert kept == {p: content(p) if p.is_dir() else p.read_bytes() for p in inside}
    page = ["audit", str(preds), "--no-intervals", "--html", str(tmp_path / "r.html")]
    formula = ["export", str(made), "-o", str(tmp_path / "m.json")]
    assert [run(page), run(page), run(formula), run(formula)] == [0, 0, 0, 0]


def test_every_written_folder_is_recognised_by_one_kind(preds: Path, tmp_path: Path) -> None:
    """Two kinds that both know a folder would replace each other."""
    run([str(a) for a in fit(preds, tmp_path / "map")])
    run(["apply", str(tmp_path / "map"), str(parts(tmp_path / "source", preds)), "-o", str(tmp_path / "parts")])
    PEP(nn.Linear(3, 3), 0.1).save(tmp_path / "pep")
    for name, kind in (("map", outputs.MAP), ("parts", outputs.PARTS), ("pep", outputs.ENSEMBLE)):
        assert [k for k in outputs.FOLDERS if k.known(tmp_path / name)] == [kind]


def test_a_full_disk_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, preds = tmp_path / "map", make(tmp_path / "cal.npz", 20_000)
    run([str(a) for a in fit(preds, made)])
    capsys.readouterr()
    size = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name in ("o.safetensors", "o.npz", "o.parquet", "o.csv"):
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, size[1]))
        try:
            code = run(["apply", str(made), str(preds), "-o", str(tmp_path / name)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, size)
        said = capsys.readouterr().err
        assert code == 1 and said.count("\n") == 1 and "too large" in said, said
        assert sorted(p.name for p in tmp_path.iterdir()) == ["cal.npz", "map"]


@pytest.mark.parametrize("words", [["demo"], ["stress", "no.such:model"], ["probe", "no.such:model"]])
def test_a_folder_that_grows_needs_permission_before_a_model_is_loaded(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # root may everything
    assert run([*words, "-o", str(tmp_path / "new" / "out")]) == 2
    assert f"no permission to write in {tmp_path}; name another folder" in capsys.readouterr().err
