"""A JSON record that carries its own hash, as weights do: one that was edited or damaged is an error naming it.

The hash is the first key. It is taken of the whole file's bytes, with zeros in its own place: record and hash get
their name on disk together, so no kill comes between them. Records of version 0.1 have none; they are read as they are,
and the reader is told.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from calibrant.errors import FileError
from calibrant.files import atomic
from calibrant.files.listing import existing

KEY = "sha256"
BLANK = b"0" * 64


def write(path: Path, body: Mapping[str, Any]) -> Path:
    data = json.dumps({KEY: BLANK.decode(), **body}, indent=2).encode()
    return atomic.write_bytes(path, data.replace(BLANK, _hash(data), 1))


def read(path: Path, unsealed: Callable[[str], None] = lambda name: None) -> dict[str, Any]:
    """The record, checked against its hash; `unsealed` hears the name of one that has none."""
    data = _bytes(path)
    body = _table(data, path)
    claimed = body.pop(KEY, None)
    if claimed is None:
        unsealed(path.name)
    elif _hash(data.replace(json.dumps(claimed).strip('"').encode(), BLANK, 1)).decode() != claimed:
        raise FileError(f"{path} was edited or damaged: its hash does not match; restore it, or make it anew elsewhere")
    return body


def table(path: Path) -> dict[str, Any]:
    """A JSON object from a file that has no hash of this kind; anything else is an error naming the file."""
    return _table(_bytes(path), path)


def _bytes(path: Path) -> bytes:
    existing(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error


def _table(data: bytes, path: Path) -> dict[str, Any]:
    try:
        body = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not valid JSON ({error}); restore it, or make it anew elsewhere") from error
    if not isinstance(body, dict):
        raise FileError(f"{path} does not hold a table; restore it, or make it anew elsewhere")
    return body


def _hash(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
