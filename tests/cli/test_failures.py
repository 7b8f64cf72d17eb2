"""Exceptions on the command line: one line on stderr, the right exit code, a traceback only on request."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch

from calibrant import cli, files, training
from calibrant.cli import run
from tests.cli.commands import Refused

Z = np.random.default_rng(0).normal(size=(20, 3))
Y = np.arange(20) % 3


@pytest.fixture
def preds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    np.savez("p.npz", logits=Z, labels=Y)
    return "p.npz"


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def raise_it(*_: Any, **__: Any) -> NoReturn:
        raise error

    return raise_it


UNFORESEEN = {
    "a bug": (ZeroDivisionError("one line\nand another"), 1, "unexpected ZeroDivisionError: one line and another"),
    "without words": (AssertionError(), 1, "unexpected AssertionError; set CALIBRANT_DEBUG=1 for the traceback"),
    "memory": (MemoryError(), 1, "out of memory"),
    "GPU memory": (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 1, "out of memory"),
    "full disk": (
        OSError(errno.ENOSPC, "No space left on device", "o.npz"),
        1,
        "No space left on device: 'o.npz'; make room",
    ),
    "name too long": (OSError(errno.ENAMETOOLONG, "File name too long", "xx"), 2, "xx is too long"),
    "no permission": (PermissionError(errno.EACCES, "Permission denied", "o.npz"), 2, "no permission to use o.npz"),
}


@pytest.mark.parametrize(("error", "code", "words"), UNFORESEEN.values(), ids=UNFORESEEN)
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["people", "json"])
def test_any_exception_is_one_line(
    error: Exception,
    code: int,
    words: str,
    more: list[str],
    preds: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(files, "read", raising(error))
    assert run(["audit", preds, *more]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and words in err
    assert ("CALIBRANT_DEBUG=1" in err) == ("unexpected" in err)
    monkeypatch.setenv("CALIBRANT_DEBUG", "1")
    assert run(["audit", preds, *more]) == code
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_torch_out_of_memory(preds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(files, "read", lambda *_, **__: torch.empty(1 << 60))
    assert run(["audit", preds]) == 1
    assert capsys.readouterr().err.startswith("calibrant: out of memory")


def test_a_long_message_is_cut_in_the_middle(
    preds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "read", raising(ValueError("x" * 10**6)))
    assert run(["audit", preds]) == 1
    err = capsys.readouterr().err
    assert len(err) < 2000 and err.endswith("; set CALIBRANT_DEBUG=1 for the traceback\n")


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (cli._Terminated(), 143)])
def test_signals_keep_their_codes(
    stop: BaseException, code: int, preds: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "read", raising(stop))
    assert run(["audit", preds]) == code
    assert capsys.readouterr().err == f"calibrant: {'interrupted' if code == 130 else 'terminated'}\n"
    monkeypatch.setattr(training, "read", raising(stop))
    assert run(["train", "digits/focal", "-o", "run"]) == code
    assert capsys.readouterr().err.endswith("; run the same command again to resume\n")


@pytest.mark.parametrize("name", ["f.npz", "f.csv", "f.parquet", "f.safetensors", "folder", "/dev/null", "/dev/zero"])
def test_pipes_and_devices_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "folder":
        Path(name).mkdir()
    if not name.startswith("/"):
        os.mkfifo(name if name != "folder" else "folder/part.parquet")
    refused(["audit", name], name, "a pipe, a device or a socket")


def test_pipes_in_place_of_maps_recipes_and_weights(preds: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "map").mkdir()
    for name in ("map/map.json", "r.toml", "w.safetensors"):
        os.mkfifo(name)
    for words in (
        ["apply", "map", preds, "-o", "o.npz"],
        ["train", "r.toml", "-o", "run"],
        ["predict", "torch.nn:Identity@w.safetensors", "--data", "digits", "-o", "o.npz"],
    ):
        refused(words, "a pipe, a device or a socket")


@pytest.mark.parametrize("verb", ["audit", "fit", "apply -o o.npz p.npz", "train -o run", "predict -o o.npz"])
def test_names_too_long(verb: str, preds: str, refused: Refused) -> None:
    for name in ("n" * 300, "a/" * 3000 + "p.npz"):
        refused([*verb.split(), name])


@pytest.mark.parametrize("content", [b"", b"epochs = \xff", b"# nothing\n", b"[[[[", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_files_that_are_not_recipes(content: bytes, suffix: str, tmp_path: Path, refused: Refused) -> None:
    recipe = tmp_path / f"r{suffix}"
    recipe.write_bytes(content)
    refused(["train", recipe, "-o", tmp_path / "run"], str(recipe))
    assert not (tmp_path / "run").exists()


def test_a_full_disk_on_stdout() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "calibrant.cli", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (1, "calibrant: [Errno 28] No space left on device\n")
