"""Store distances on disk, one file per chunk, so that a killed measurement continues after the last finished chunk.

    STORE/robustness.json        what was measured: hash of the network, ruler and its settings, items, chunk
    STORE/00000.safetensors …    `distance` of a chunk, with the hash of its inputs

Each file is written whole or not at all. A store of another model, ruler, data set or edition of the rulers is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrant.errors import FileError, InputError
from calibrant.files import atomic, hashed, outputs
from calibrant.files.paths import visible
from calibrant.types import SCHEMA

HEADER = "robustness.json"
EDITION = 9
"""Raised when a ruler with the same settings measures other distances, so that two editions are never mixed."""


@dataclass(frozen=True)
class Store:
    """A folder for the distances that `header` describes. It is created when the first chunk is written."""

    folder: Path
    header: Mapping[str, Any]

    @property
    def chunk(self) -> int:
        return int(self.header["chunk"])

    def get(self, number: int, data: str) -> Tensor | None:
        """Return the chunk's distances, or None if they are not stored. Distances of other inputs are an error."""
        path = self._path(number)
        if not path.is_file():
            return None
        held, head = hashed.read_tensors(path, "remove it, and its items are measured again")
        if head.get("data") != data:
            raise InputError(
                f"{path} holds distances of other data (another data set, split, order or normalisation); "
                "choose another store or remove this one"
            )
        return held["distance"]

    def put(self, number: int, data: str, distance: Tensor) -> None:
        """Write a chunk, and the header before the first one, so that a refused input leaves nothing behind."""
        if not (self.folder / HEADER).is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic.write_text(self.folder / HEADER, json.dumps(self.header, indent=2, ensure_ascii=False))
        hashed.write_tensors(self._path(number), {"distance": distance}, {"data": data})

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}.safetensors"


def open_store(folder: str | Path, header: Mapping[str, Any], chunk: int | None, default: int) -> Store:
    """Return the store in `folder`, or a new one to be created there. An existing store keeps its chunk size."""
    folder = Path(folder)
    path = folder / HEADER
    if not path.is_file():
        outputs.check_place(folder, "store distances in")
        if visible(folder):
            raise InputError(f"{folder} holds something other than distances (no {HEADER}); choose another store")
        return Store(folder, {"schema": SCHEMA, "edition": EDITION, **header, "chunk": chunk or default})
    try:
        held = hashed.table(path)
        then = {**held, **held["settings"]}
        if (own := int(held["chunk"])) < 1:
            raise ValueError(f"chunk: {own}")
    except (FileError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path}: not a header of distances ({error}); remove the folder and measure again") from error
    now = {"edition": EDITION, **header, **header["settings"]}
    del now["settings"]
    for name, value in now.items():
        if then.get(name) != value:
            raise InputError(
                f"{folder} holds distances of {name} {_short(then.get(name))}, not {_short(value)}; "
                "choose another store or remove this one"
            )
    if chunk is not None and chunk != own:
        raise InputError(f"{folder} was begun in chunks of {own}, not {chunk}; leave chunk out to continue it")
    return Store(folder, held)


def _short(value: Any) -> str:
    text = str(value)
    return text[:12] + "…" if len(text) == 64 else text  # a hash
