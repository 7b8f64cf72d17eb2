"""Nothing is half written: a temporary name beside the target, fsync, rename, fsync of the parent.

A kill at any moment leaves the old file (or folder) or the new one. A folder cannot be renamed over a
folder that holds something, so the two are exchanged in one step where the system can
(renameat2, Linux); elsewhere the old one is moved aside first and removed last.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from calibrant.errors import FileError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
ABANDONED = 3600.0  # seconds; what is being written is a few old


def write_bytes(path: str | os.PathLike[str], data: bytes) -> Path:
    """Write `data` to `path`, whole or not at all."""
    with file(path) as temporary:
        temporary.write_bytes(data)
    return Path(path)


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write UTF-8 text to `path`, whole or not at all."""
    return write_bytes(path, text.encode("utf-8"))


@contextmanager
def file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside `path`, with its suffix; renamed to `path` when the block ends well, else removed."""
    target = Path(path)
    _check_parent(target)
    if target.is_dir():
        raise FileError(f"{target} is a folder; name a file to write")
    temporary = target.with_name(f".{target.stem}.{_token()}{target.suffix}")
    try:  # from here on: a signal between making the file and this line would leave it
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
        _sync(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary folder beside `path`; becomes `path` (replacing a folder there) when the block ends well."""
    target = Path(path)
    if target.name in ("", ".."):
        raise FileError(f"{target} cannot be replaced by a folder that is written; name a new folder")
    _check_parent(target)
    if target.exists() and not target.is_dir():
        raise FileError(f"{target} is a file; name a folder to write")
    temporary = target.with_name(f".{target.name}.{_token()}")
    try:
        temporary.mkdir()
        yield temporary
        for root, _, names in os.walk(temporary):
            for name in names:
                _sync(Path(root) / name)
            _sync(Path(root))
        _become(temporary, target)
        _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # the old content, after an exchange


def check_place(path: Path, purpose: str) -> None:
    """Refuse a folder that is none, that cannot be made or that takes no files, before anything is done for it."""
    there = _nearest(path)
    if not there.is_dir():
        raise FileError(f"{there} is a file; name a folder to {purpose}")
    if not takes_files(there):
        raise FileError(f"no permission to write in {there}; name another folder to {purpose}")


def takes_files(path: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, may be written to."""
    there = _nearest(path)
    return there.is_dir() and os.access(there, os.W_OK | os.X_OK)


def _nearest(path: Path) -> Path:
    """The folder, or the nearest one above it that exists, as far as one may look."""
    for place in (path, *path.absolute().parents):
        try:
            if place.exists():
                return place
        except PermissionError:  # the one above lets nobody look
            continue
    return Path(path.absolute().anchor)


def sweep(path: Path, names: str) -> None:
    """Remove the temporary files of targets `names` (a regular expression) that killed writes left in a folder.

    Only those of long ago: another process may be writing one now.
    """
    stem, dot, suffix = names.partition(r"\.")
    temporary = re.compile(rf"\.{stem}\.[-\w]{{8}}{dot}{suffix}")  # what `file` calls them
    for name in os.listdir(path):
        try:
            if temporary.fullmatch(name) and time.time() - (path / name).stat().st_mtime > ABANDONED:
                (path / name).unlink()
        except FileNotFoundError:  # it has got its name since, or somebody else swept it
            continue


def _become(temporary: Path, target: Path) -> None:
    try:
        os.rename(temporary, target)  # nothing there, or an empty folder
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if not _exchange(temporary, target):
        aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old."))
        os.rename(target, aside / "old")
        os.rename(temporary, target)
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two paths in one step; False where the system or the file system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    done: int = libc.renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE)
    return done == 0


def _check_parent(target: Path) -> None:
    if not target.parent.is_dir():
        raise FileError(f"cannot write {target}: the folder {target.parent} does not exist")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise FileError(f"cannot write {target}: no permission to write in {target.parent}")


def _token() -> str:
    return secrets.token_urlsafe(6)  # eight letters, of which no two writers ever draw the same


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
