"""A command replaces only output of its own kind, and never one of its inputs."""

from __future__ import annotations

import os
import resource
import shlex
from pathlib import Path

import pytest
from torch import nn

import calibrant
from calibrant import PEP, files
from calibrant.cli import run
from calibrant.errors import FileError
from calibrant.files import outputs
from tests.cli.commands import Refused, make

FIT = "fit cal.npz --method temperature -o"
DECIDE = "decide cal.npz --accept 0.5"
PREDICT = "predict run --data digits"
LONG = "a" * 300

REFUSED = [
    (f"{FIT} mine", "thesis.txt"),
    (f"{FIT} hidden", ".git"),
    (f"{FIT} noted", "notes.txt"),
    (f"{FIT} game", "map.json"),
    (f"{FIT} pep", "holds an ensemble, not a fitted map"),
    (f"{FIT} rule", "holds a decision rule, not a fitted map"),
    (f"{FIT} applied", "holds predictions in parts, not"),
    (f"{FIT} run", "holds a training run, not a fitted map"),
    (f"{FIT} file", "is a file"),
    (f"{FIT} map-link", "is a link to"),
    (f"{FIT} {LONG}", "shorter"),
    ("fit map/inside.npz --method temperature -o map", "holds the input"),
    (f"{DECIDE} -o map", "holds a fitted map, not a decision rule"),
    (f"{DECIDE} --map rule", "holds a decision rule, not a fitted map"),
    ("apply map parts -o mine", "thesis.txt"),
    ("apply map parts -o noted", "holds a fitted map, not"),
    ("apply map parts -o file", "is a file"),
    ("apply map applied -o parts", "0.parquet"),
    ("apply map cal.npz -o folder.npz", "is a folder"),
    ("apply map cal.npz -o cal.npz", "also an input"),
    ("apply map cal.npz -o link.npz", "also an input"),
    ("apply map link.npz -o cal.npz", "also an input"),
    ("apply map cal.npz -o twin.npz", "also an input"),
    ("apply map parts -o map", "also an input"),
    ("apply map parts-link -o parts", "also an input"),
    ("apply map parts -o parts/out", "part of the input"),
    ("apply map parts -o parts/1.parquet", "part of the input"),
    ("audit cal.npz --html cal.npz", "also an input"),
    ("audit twin.npz --calibration link.npz --html cal.npz", "also an input"),
    ("audit cal.npz --html map", "is a folder"),
    ("audit cal.npz --html pipe.html", "device or a pipe"),
    ("audit cal.npz --html thesis.html", "not an HTML page"),
    (f"audit cal.npz --html {LONG}", "shorter"),
    (f"audit cal.npz --html {LONG}/b", "does not exist"),
    (f"audit cal.npz --html {'a/' * 3000}b", "does not exist"),
    ("export map -o map/map.json", "part of the input"),
    ("export map -o package.json", "not an exported map"),
    (f"{PREDICT} -o o.npz --ensemble pep --sigma 0.1 --save run", "also an input"),
    (f"{PREDICT} -o run/test.npz", "part of the input"),
    (f"{PREDICT} -o o.npz --html o.npz", "two outputs"),
    ("stress run -o run", "holds a training run, not a stress run"),
    ("stress run --suite ood -o mine", "thesis.txt"),
    ("demo -o run", "holds a training run, not the output of `calibrant demo`"),
    ("demo -o mine", "thesis.txt"),
    ("train digits/focal -o mine", "thesis.txt"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of output, the user's own files, and links."""
    d = tmp_path_factory.mktemp("outputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(d)
        make(Path("cal.npz"), 0, "calibration", n=60)
        files.write("applied-to.parquet", files.read("cal.npz"))
        Path("parts").mkdir()
        Path("applied-to.parquet").rename("parts/0.parquet")
        small = "--set epochs=1 --set network.hidden=[4] --device cpu --json"
        for _ in range(2):  # users give the same command again
            for command in (f"{FIT} map", f"{DECIDE} -o rule", "apply map parts -o applied", f"{FIT} noted"):
                assert run(shlex.split(command)) == 0
            PEP(nn.Linear(3, 3), 0.1).save("pep")
        assert run(shlex.split(f"train digits/focal -o run {small}")) == 0
        for path, text in (
            *(("mine/thesis.txt", "x"), ("noted/notes.txt", "mine"), ("game/map.json", '{"tiles": []}'), ("file", "x")),
            *(("thesis.html", "not a page"), ("package.json", '{"name": "mine"}'), ("hidden/.git/config", "x")),
        ):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text(text)
        make(Path("map/inside.npz"), 0, "calibration", n=60)
        Path("folder.npz").mkdir()
        for link, target in (("link.npz", "cal.npz"), ("parts-link", "parts"), ("map-link", "map")):
            Path(link).symlink_to(target)
        os.link("cal.npz", "twin.npz")
        os.mkfifo("pipe.html")
    return d


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize(("command", "words"), REFUSED)
def test_neither_inputs_nor_other_files_are_replaced(
    command: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(folder)
    before = content(folder)
    refused(shlex.split(command), words)
    assert content(folder) == before


def test_saving_in_python_keeps_a_thesis_too(folder: Path) -> None:
    for save in (PEP(nn.Linear(3, 3), 0.1).save, calibrant.fit("temperature", files.read(folder / "cal.npz")).save):
        with pytest.raises(FileError, match=r"thesis\.txt"):
            save(folder / "mine")


def test_every_written_folder_is_recognised_by_one_kind(folder: Path) -> None:
    """Two kinds that both know a folder would replace each other."""
    for name, kind in (("noted", outputs.MAP), ("applied", outputs.PARTS), ("pep", outputs.ENSEMBLE)):
        assert [k for k in outputs.FOLDERS if k.known(folder / name)] == [kind]


def test_an_empty_folder_and_the_commands_own_files_are_replaced(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("map").mkdir()
    cal, made = folder / "cal.npz", folder / "run"
    for _ in range(2):
        for command in (
            f"fit {cal} --method temperature -o map",
            f"audit {cal} --no-intervals --html r.html",
            "export map -o m.json",
            f"predict {made} --data digits -o {made / 'again.npz'}",  # a name of the user's own inside the run
        ):
            assert run(shlex.split(command)) == 0


def test_a_full_disk_is_one_line_and_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, preds = tmp_path / "map", make(tmp_path / "cal.npz", 0, "calibration", n=20_000)
    run(["fit", str(preds), "--method", "temperature", "-o", str(made)])
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
