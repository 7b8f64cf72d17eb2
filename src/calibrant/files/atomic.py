"""Files are written whole or not at all: a temporary name beside the target, fsync, rename, fsync of the parent.

A kill at any moment leaves either the old file (or folder) or the new one. A folder cannot be renamed over a folder
that is not empty, so the two are exchanged in one step where the system can do that (renameat2, Linux); elsewhere the
old one is moved aside first and removed last.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from calibrant.errors import disk_full
from calibrant.files.locks import take
from calibrant.files.outputs import FILE, Kind, check_target

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


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
    """A temporary file beside `path`, with its suffix; renamed to `path` if the block succeeds, else removed."""
    target = Path(path)
    check_target(target, FILE)
    with _temporary(target, lambda new: os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)) as temporary:
        yield temporary
        _sync(temporary)
        os.replace(temporary, target)
        _sync(target.parent)


@contextmanager
def folder(path: str | os.PathLike[str], kind: Kind) -> Iterator[Path]:
    """A temporary folder beside `path`; if the block succeeds it becomes `path` and replaces a folder of its kind."""
    target = Path(path)
    check_target(target, kind)

    def make(new: Path) -> int:
        new.mkdir()
        return os.open(new, os.O_RDONLY)

    with _temporary(target, make) as temporary:
        yield temporary
        for root, _, names in os.walk(temporary):
            for name in names:
                _sync(Path(root) / name)
            _sync(Path(root))
        check_target(target, kind)  # the work may have taken hours
        _replace(temporary, target)
        _sync(target.parent)


def remove_leftovers(path: Path, names: str) -> None:
    """Remove the temporary files that killed writes left in a folder. `names` matches the names of their targets.

    A process that is still writing holds a lock on its temporary file, which then stays.
    """
    import fcntl

    if not os.access(path, os.R_OK):
        return
    temporary = re.compile(rf"\.calibrant-[-\w]{{8}}\.(?:{names})")
    for left in (path / name for name in os.listdir(path) if temporary.fullmatch(name)):
        try:
            handle = os.open(left, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:  # it was renamed in the meantime, or belongs to another user
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(left)
        except OSError:  # it is being written
            continue
        finally:
            os.close(handle)


@contextmanager
def _temporary(target: Path, make: Callable[[Path], int]) -> Iterator[Path]:
    """Make a temporary file or folder beside the target. It is locked while the block runs and removed afterwards.

    Leftovers of earlier writes are removed first.
    """
    remove_leftovers(target.parent, re.escape(target.name))
    while True:
        temporary = target.with_name(f".calibrant-{_token()}.{target.name}")
        try:
            handle = make(temporary)
        except OSError as error:  # the user named the target
            raise type(error)(error.errno, error.strerror, str(target)) from error
        if take(handle) and temporary.exists():
            break
        os.close(handle)  # another process swept it before it was locked
    try:
        yield temporary
    except OSError as error:
        if not disk_full(error):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error  # the temporary name says little
    finally:
        _remove(temporary)  # after an exchange, the old content
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _replace(temporary: Path, target: Path) -> None:
    try:
        os.rename(temporary, target)  # works if nothing is there, or an empty folder
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    if not _exchange(temporary, target):
        aside = target.with_name(f".calibrant-old.{target.name}")
        _remove(aside)  # left by a write that was killed here, and replaced since
        os.rename(target, aside)
        os.rename(temporary, target)
        _remove(aside)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two paths in one step, and return whether the system and the file system can do that."""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    done: int = libc.renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE)
    return done == 0


def _token() -> str:
    return secrets.token_urlsafe(6)  # eight random letters, different for every writer


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
