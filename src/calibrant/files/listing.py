"""What is there: a path that can be read, and what lies in a folder, in the order of names, without hidden names.

A write that was killed leaves its temporary file (`atomic`), which begins with a dot and has the suffix of its target:
`Path.glob("*.json")` finds it, this does not. Nor what other programs hide: `._photo.jpg`, `.ipynb_checkpoints`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from calibrant.errors import FileError


def existing(path: str | os.PathLike[str]) -> Path:
    """A file or folder that can be read. A pipe or a device is refused, not waited for."""
    where = Path(path)
    try:
        mode = where.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileError(f"{where}: no such file") from error
    except OSError as error:  # a name too long, a link that leads to itself, a folder that lets nobody look
        raise FileError(f"{where}: cannot be read ({error.strerror})") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FileError(f"{where}: a pipe, a device or a socket, not a file; save its content to a file first")
    if not os.access(where, os.R_OK):
        raise FileError(f"{where}: cannot be read (permission denied)")
    return where


def visible(folder: str | os.PathLike[str], pattern: str = "*") -> list[Path]:
    """Paths in `folder` that fit `pattern` (`**/` for any depth), sorted; empty if there is no such folder."""
    root = Path(folder)
    if pattern == "*":
        return [root / name for name in names(root)]
    _check(root)
    above = len(root.parts)
    return sorted(p for p in root.glob(pattern) if not any(n.startswith(".") for n in p.parts[above:]))


def names(folder: Path) -> list[str]:
    """The names alone, a tenth of the time: ImageNet-C has millions of files."""
    _check(folder)
    return sorted(n for n in (os.listdir(folder) if folder.is_dir() else ()) if not n.startswith("."))


def everything(folder: Path) -> list[str]:
    """Hidden names too: for what is about to be replaced."""
    _check(folder)
    return sorted(os.listdir(folder))


def _check(folder: Path) -> None:
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):  # `glob` would say that there is nothing in it
        raise FileError(f"no permission to list {folder}; make it readable")
