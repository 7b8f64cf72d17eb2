"""Paths that can be read: files that exist, the content of folders, links that stay inside, and damaged files.

Folders are listed in the order of names, without hidden names. A write that was killed leaves its temporary file
(`atomic`), which begins with a dot and has the suffix of its target: `Path.glob("*.json")` would find it. Other
programs hide files too: `._photo.jpg`, `.ipynb_checkpoints`.

Every library has its own errors for truncated, hostile or exotic files, and they change with its versions. So any error
of a parser becomes one `FileError` that names the file (`readable`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from calibrant.errors import CalibrantError, FileError, nearest, out_of_memory

SMALL = 1 << 26
"""Bytes. If a smaller file needs more memory than there is, its header is wrong."""


def existing(path: str | os.PathLike[str]) -> Path:
    """A file or folder that can be read. Pipes and devices are refused, as reading one may never end."""
    where = Path(path)
    try:
        mode = where.stat().st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileError(f"{where}: no such file{near(where)}") from error
    except OSError as error:  # a name too long, a link to itself, a folder without permission
        raise FileError(f"{where}: cannot be read ({error.strerror})") from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise FileError(f"{where}: a pipe, a device or a socket, not a file; save its content to a file first")
    if not os.access(where, os.R_OK):
        raise FileError(f"{where}: cannot be read (permission denied)")
    return where


def near(path: Path) -> str:
    """A hint, "; did you mean test.npz?", if there is a name like the first missing part of this path; else ""."""
    missing = next((p for p in (*reversed(path.parents), path) if not p.exists()), None)
    if missing is None or not missing.parent.is_dir() or not os.access(missing.parent, os.R_OK):
        return ""
    found = nearest(missing.name, islice(os.listdir(missing.parent), 1000), cutoff=0.75)
    if found is None or found == missing.name:  # the name is there, but it is a link to nothing
        return ""
    return f"; did you mean {missing.parent / found / path.relative_to(missing)}?"


def visible(folder: str | os.PathLike[str], pattern: str = "*") -> list[Path]:
    """Paths in `folder` that match `pattern` (`**/` for any depth), sorted; empty if there is no such folder."""
    root = Path(folder)
    if pattern == "*":
        return [root / name for name in names(root)]
    _check(root)
    above = len(root.parts)
    return sorted(p for p in root.glob(pattern) if not any(n.startswith(".") for n in p.parts[above:]))


def names(folder: Path) -> list[str]:
    """The names in a folder, sorted, without hidden ones. Ten times as fast as paths: ImageNet-C has millions."""
    _check(folder)
    return sorted(n for n in (os.listdir(folder) if folder.is_dir() else ()) if not n.startswith("."))


def everything(folder: Path) -> list[str]:
    """All names in a folder, hidden ones too: nothing may be lost when it is replaced."""
    _check(folder)
    return sorted(os.listdir(folder))


def _check(folder: Path) -> None:
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):  # `glob` would report it as empty
        raise FileError(f"no permission to list {folder}; make it readable")


def check_links(folder: Path) -> None:
    """Refuse a link below `folder` that leads out of it: a folder may come from anyone. (The folder may be a link.)"""
    for path in visible(folder, "**/*"):
        check_link(path, folder)


def check_link(path: Path, folder: Path) -> None:
    """Refuse `path` if it is a link that leads out of `folder`."""
    if path.is_symlink() and not _below(path, folder):
        raise FileError(f"{path} is a link that leads out of {folder}; replace it by what it points to")


def inside(folder: Path, name: Any, source: Path) -> Path:
    """The path `folder / name`, where `name` was read from `source`; it must not lead out of the folder."""
    if not isinstance(name, str) or "\0" in name or not _below(folder / name, folder):
        raise FileError(f"{source} leads out of {folder}: {name!r}; restore it, or create it again elsewhere")
    return folder / name


def _below(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


@contextmanager
def readable(path: Path, what: str) -> Iterator[None]:
    """Any error while the block reads `what` ("this image", "key 'logits'") of a file becomes a `FileError`.

    Pipes and devices are refused before the block begins.
    """
    existing(path)
    try:
        yield
    except CalibrantError:  # it already has a clear message
        raise
    except Exception as error:
        if out_of_memory(error) and not (path.is_file() and path.stat().st_size < SMALL):
            raise
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise FileError(f"{path}: {what} is truncated or damaged ({first}); save it again") from error


def calibrated(path: str | os.PathLike[str]) -> str:
    """A file name for predictions after a map. A table remains a table, so that it keeps its columns."""
    suffix = Path(path).suffix
    return f"calibrated{suffix if suffix in ('.csv', '.parquet') else '.npz'}"


def partner(path: str | os.PathLike[str]) -> Path | None:
    """The `calibration.npz` beside a `test.npz`, or the other way round; None if it does not exist."""
    where = Path(path)
    other = {"test": "calibration", "calibration": "test"}.get(where.stem)
    found = None if other is None else where.with_name(f"{other}{where.suffix}")
    return found if found is not None and found.is_file() else None
