"""A folder may come from anyone: neither a link in it nor a path that is stored in it leads outside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from calibrant.errors import FileError
from calibrant.files.listing import visible


def check_links(folder: Path) -> None:
    """Refuse a link below `folder` that leads out of it. (The folder itself may be reached by one.)"""
    for path in visible(folder, "**/*"):
        if path.is_symlink() and not _below(path, folder):
            raise FileError(f"{path} is a link that leads out of {folder}; put what it leads to in its place")


def inside(folder: Path, name: Any, source: Path) -> Path:
    """The path that `source` stores as `name`, as seen from `folder`."""
    if not isinstance(name, str) or "\0" in name or not _below(folder / name, folder):
        raise FileError(f"{source} leads out of {folder}: {name!r}; restore it, or make it anew elsewhere")
    return folder / name


def _below(path: Path, folder: Path) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
