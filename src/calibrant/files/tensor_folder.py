"""A folder with tensors (`NAME.safetensors`) and a JSON header (`NAME.json`): fitted maps, rules. No pickle, ever.

The header holds the SHA-256 of the tensors' file and of its own content, so truncated or edited folders are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrant.errors import FileError, MapError
from calibrant.files import atomic, hashed, outputs
from calibrant.files.paths import check_links, near, readable
from calibrant.types import json_text, jsonable


@dataclass(frozen=True)
class Layout:
    """What kind of folder this is; `again` is the remedy for a damaged one."""

    name: str  # of both files, and in the header's `format`
    kind: outputs.Kind
    version: int  # a newer one is refused; older ones are read
    again: str
    command: str  # that makes such a folder

    @property
    def tensors(self) -> str:
        return f"{self.name}.safetensors"

    @property
    def header(self) -> str:
        return f"{self.name}.json"


def write(layout: Layout, folder: str | PathLike[str], body: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Write a folder with header and tensors, whole or not at all."""
    from safetensors.torch import save as to_bytes

    import calibrant

    data = to_bytes(hashed.copied(tensors))
    header = jsonable(
        {
            "format": f"calibrant {layout.name}",
            "version": layout.version,
            "calibrant": calibrant.__version__,
            **body,
            "tensors": hashlib.sha256(data).hexdigest(),
        }
    )
    header["content"] = _content(header)
    path = Path(folder)
    with atomic.folder(path, layout.kind) as temporary:
        (temporary / layout.tensors).write_bytes(data)
        (temporary / layout.header).write_text(json_text(header), "utf-8")
    return path


def holds(layout: Layout, path: Path) -> bool:
    return (path / layout.header).exists() or (path / layout.tensors).exists()


def check(layout: Layout, path: Path) -> None:
    """Refuse a path that is no folder of this kind, and say how to read what it holds, or how to make one."""
    called, makes = layout.kind.called, f"`{layout.command} … -o {layout.name.upper()}/` makes one"
    if not path.exists():
        remedy = near(path) or f"; make one with `{layout.command} … -o {path}`"
        raise FileError(f"{path} is not a folder with {called}{remedy}")
    if not path.is_dir():
        raise FileError(f"{path} is a file, not a folder with {called}; {makes}")
    if holds(layout, path):
        return
    found = outputs.kind_of(path)
    readers = {
        outputs.ENSEMBLE: f"read it with calibrant.PEP.load({str(path)!r}, model)",
        outputs.RUN: f"read it with calibrant.training.load({str(path)!r}), or make one with "
        f"`{layout.command} {path / 'calibration.npz'} … -o {layout.name.upper()}/`",
        outputs.MAP: makes,
        outputs.RULE: f"read it with calibrant.load({str(path)!r})",
    }
    if found in readers:
        raise MapError(f"{path} holds {found.called}, not {called}; {readers[found]}")
    raise MapError(f"{path} holds no {called.partition(' ')[2]}: {layout.header} is missing; {makes}")


def read(layout: Layout, path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return (header, tensors), both checked against their hashes. Links that lead out of the folder are refused."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    check_links(path)
    header = _header(layout, path / layout.header)
    where = path / layout.tensors
    data = _bytes(layout, where)
    if hashlib.sha256(data).hexdigest() != header.get("tensors"):
        raise MapError(f"{where} was truncated or edited: its hash is not the header's; {layout.again}")
    try:
        return header, from_bytes(data)
    except SafetensorError as error:
        raise MapError(f"{where} holds no tensors ({error}); {layout.again}") from error


def _header(layout: Layout, where: Path) -> dict[str, Any]:
    text = _bytes(layout, where)
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise MapError(f"{where} is truncated or not JSON; {layout.again}") from error
    if not isinstance(header, dict) or header.get("format") != f"calibrant {layout.name}":
        raise MapError(f"{where} is not the header of {layout.kind.called}")
    version = header.get("version")
    if isinstance(version, int) and version > layout.version:
        raise MapError(
            f"{where} has version {version}, newer than {layout.version}, which this calibrant reads; upgrade calibrant"
        )
    stored = header.pop("content", None)
    if stored is None or stored != _content(header):
        raise MapError(f"{where} was edited: its content does not have the hash it was written with; {layout.again}")
    return header


def _content(header: Mapping[str, Any]) -> str | None:
    try:
        text = json.dumps(header, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8")).hexdigest()
    except ValueError:  # calibrant writes neither NaN nor half a surrogate pair, but Python reads both
        return None


def _bytes(layout: Layout, path: Path) -> bytes:
    if not path.exists():
        raise MapError(f"{path} is missing: the {layout.name}'s folder is incomplete; {layout.again}")
    with readable(path, f"this part of a {layout.name}"):
        return path.read_bytes()
