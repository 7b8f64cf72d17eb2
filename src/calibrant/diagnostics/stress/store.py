"""A stress folder: settings.json, cells/KEY.npz (logits, labels), stress.json. A run that was killed goes on from it.

A cell is written whole or not at all, so a kill loses only the cell that was being computed. A folder that was begun
with other settings is refused, and the error names the difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from calibrant.diagnostics.stress.cells import Cell
from calibrant.errors import FileError, InputError
from calibrant.files import atomic, hashed, outputs
from calibrant.files.paths import check_links
from calibrant.types import SCHEMA, jsonable

Arrays = dict[str, Tensor]


@dataclass(frozen=True)
class Folder:
    """The cells on disk, all computed with the same settings."""

    path: Path

    @classmethod
    def begin(cls, path: Path, settings: Mapping[str, Any]) -> Folder:
        """Return the folder, new or with the same settings; an error names settings that differ."""
        outputs.check_target(path, outputs.STRESS)
        check_links(path)
        found = path / "settings.json"
        content = jsonable(dict(settings))
        if found.is_file():
            old = hashed.table(found)
            old.pop("schema", None)
            differ = [
                f"{key} was {_short(old.get(key))}, is {_short(content.get(key))}"
                for key in sorted({*old, *content})
                if old.get(key) != content.get(key)
            ]
            if differ:
                raise InputError(f"{path} was begun with other settings ({'; '.join(differ)}); choose another folder")
        else:
            if not path.parent.is_dir():
                raise FileError(f"cannot write {path}: the folder {path.parent} does not exist")
            path.mkdir(exist_ok=True)
            atomic.write_text(found, json.dumps({"schema": SCHEMA, **content}, indent=2, ensure_ascii=False))
        (path / "cells").mkdir(exist_ok=True)
        return cls(path)

    @classmethod
    def existing(cls, path: Path) -> Folder:
        """Return a folder that was begun before."""
        if not (path / "settings.json").is_file():
            raise FileError(f"{path} is not a stress folder: it has no settings.json")
        check_links(path)
        return cls(path)

    def settings(self) -> dict[str, Any]:
        return hashed.table(self.path / "settings.json")

    def file(self, key: str) -> Path:
        return self.path / "cells" / f"{key}.npz"

    def __contains__(self, key: str) -> bool:
        return self.file(key).is_file()

    def write(self, key: str, arrays: Arrays, texts: Mapping[str, str]) -> None:
        held: dict[str, Any] = {name: tensor.numpy() for name, tensor in arrays.items()}
        held |= {name: np.array(text) for name, text in texts.items()}
        with atomic.file(self.file(key)) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **held)

    def read(self, key: str) -> Arrays:
        """Return the arrays of a cell; its texts are for other readers of the file."""
        try:
            # opened here, because numpy does not close a file that is not an archive
            with self.file(key).open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                held = {name: archive[name] for name in archive.files}
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            raise FileError(f"{self.file(key)}: not a readable cell ({error}); delete it and run again") from error
        return {name: torch.from_numpy(a) for name, a in held.items() if a.dtype.kind in "fiub" and a.ndim}

    def corruptions(self, types: Sequence[str], severities: Sequence[int]) -> dict[tuple[str, int], Arrays]:
        """Return the corruption cells, for the comparison with another model (SS Eq. 34–36)."""
        found = {}
        for name in types:
            for severity in severities:
                key = Cell("corruption", name, severity).key
                if key not in self:
                    raise FileError(
                        f"{self.path} lacks {name} at severity {severity}; stress the reference with the same suite"
                    )
                found[name, severity] = self.read(key)
        return found

    def record(self, content: Mapping[str, Any]) -> Path:
        """Write stress.json."""
        text = json.dumps(jsonable(dict(content)), indent=1, ensure_ascii=False, allow_nan=False)
        return atomic.write_text(self.path / "stress.json", text + "\n")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"
