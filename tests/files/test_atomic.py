"""Files are written whole or not at all, also if the block fails or the process is killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from calibrant.errors import FileError
from calibrant.files import atomic
from calibrant.files.outputs import Kind
from tests.killed import leave

ANY = Kind("anything", lambda folder: True, r".*")


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
        with atomic.folder(tmp_path / "d", ANY):
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
    with pytest.raises(RuntimeError), atomic.folder(tmp_path / "d", ANY) as temporary:
        (temporary / "x").write_text("half")
        raise RuntimeError
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("exchange", [True, False])
def test_folder_replaces_a_full_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda a, b: False)
    target = tmp_path / "d"
    for content in ("old", "new"):
        with atomic.folder(target, ANY) as temporary:
            (temporary / content).mkdir()
            (temporary / content / "x").write_text(content)
    assert names(target) == ["new"]
    assert (target / "new" / "x").read_text() == "new"
    assert names(tmp_path) == ["d"]


def test_impossible_targets_are_refused(tmp_path: Path) -> None:
    for unnamed in (".", "..", "/"):
        with pytest.raises(FileError, match="name a new folder"), atomic.folder(unnamed, ANY):
            pass
    with pytest.raises(FileError, match="does not exist"):
        atomic.write_bytes(tmp_path / "no" / "f", b"")
    assert names(tmp_path) == []


WRITES = """
import sys
from calibrant.files import atomic
atomic.write_bytes(sys.argv[1], b"half of it")
"""


def test_a_kill_leaves_the_old_file_and_the_next_write_removes_the_temporary_one(tmp_path: Path) -> None:
    """The temporary files of this target only, and only those with calibrant's own prefix."""
    (tmp_path / "a.txt").write_text("old")
    for name in ("a.txt", "b.txt"):
        leave(WRITES, 1, str(tmp_path / name), half=True)
    assert (tmp_path / "a.txt").read_text() == "old"
    (tmp_path / ".calibrant-12345678.d" / "inside").mkdir(parents=True)
    for name in (".a.settings.txt", ".calibrant-notes.txt"):
        (tmp_path / name).write_text("mine")
    atomic.write_text(tmp_path / "a.txt", "whole")
    with atomic.folder(tmp_path / "d", ANY):
        pass
    [other] = [n for n in names(tmp_path) if n.endswith(".b.txt")]
    assert names(tmp_path) == sorted([".a.settings.txt", ".calibrant-notes.txt", other, "a.txt", "d"])


def test_files_being_written_are_not_removed(tmp_path: Path) -> None:
    """The first of two writers at once is not disturbed by the second; the last one to finish wins."""
    with atomic.file(tmp_path / "a") as one, atomic.folder(tmp_path / "d", ANY) as two:
        one.write_text("first")
        atomic.write_text(tmp_path / "a", "second")
        with atomic.folder(tmp_path / "d", ANY) as other:
            (other / "second").write_text("")
        assert one.is_file() and two.is_dir()
    assert (tmp_path / "a").read_text() == "first"
    assert names(tmp_path) == ["a", "d"] and names(tmp_path / "d") == []
