"""Whole or not at all: what a failing block, a kill and an existing target leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from calibrant.errors import FileError
from calibrant.files import atomic


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_writes_and_replaces(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    atomic.write_text(target, "one")
    atomic.write_text(target, "zwei ü")
    assert target.read_text(encoding="utf-8") == "zwei ü"
    assert names(tmp_path) == ["a.txt"]


def test_mode_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        atomic.write_bytes(tmp_path / "a", b"")
        with atomic.folder(tmp_path / "d"):
            pass
    finally:
        os.umask(old)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o750


def test_a_failing_block_leaves_the_old(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    atomic.write_text(target, "old")
    with pytest.raises(RuntimeError), atomic.file(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    with pytest.raises(RuntimeError), atomic.folder(tmp_path / "d") as temporary:
        (temporary / "x").write_text("half")
        raise RuntimeError
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("exchange", [True, False])
def test_folder_replaces_a_full_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda a, b: False)
    target = tmp_path / "d"
    for content in ("old", "new"):
        with atomic.folder(target) as temporary:
            (temporary / content).mkdir()
            (temporary / content / "x").write_text(content)
    assert names(target) == ["new"]
    assert (target / "new" / "x").read_text() == "new"
    assert names(tmp_path) == ["d"]


def test_refuses_what_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_text("x")
    with pytest.raises(FileError, match="is a folder"):
        atomic.write_bytes(tmp_path / "d", b"")
    with pytest.raises(FileError, match="is a file"), atomic.folder(tmp_path / "f"):
        pass
    for unnamed in (".", "..", "/"):
        with pytest.raises(FileError, match="name a new folder"), atomic.folder(unnamed):
            pass
    with pytest.raises(FileError, match="does not exist"):
        atomic.write_bytes(tmp_path / "no" / "f", b"")
    assert names(tmp_path) == ["d", "f"]


def test_a_kill_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.txt"
    target.write_text("old")
    code = textwrap.dedent("""
        import os, signal, sys
        from calibrant.files import atomic
        with atomic.file(sys.argv[1]) as temporary:
            temporary.write_text("half of the new")
            os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert target.read_text() == "old"
