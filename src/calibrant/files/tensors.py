"""`.safetensors`: tensors by name; text (split, classes, ids, provenance) in the header's metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from calibrant.errors import FileError
from calibrant.files.arrays import Arrays, Content


def read(path: Path) -> Arrays:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="pt") as stored:
            names, meta = tuple(stored.keys()), dict(stored.metadata() or {})
    except (SafetensorError, ValueError) as error:
        raise FileError(f"{path}: truncated, or not a .safetensors file ({error}); save it again") from error

    def load(name: str) -> Any:
        try:
            with safe_open(str(path), framework="pt") as stored:
                return stored.get_tensor(name)
        except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise FileError(f"{path}: key {name!r} cannot be read ({error}); save it again as floats") from error

    return Arrays(path, names, load, meta)


def write(path: Path, content: Content) -> None:
    from safetensors.torch import save_file

    lists = {name: json.dumps(list(values), ensure_ascii=False) for name, values in content.lists.items()}
    save_file(dict(content.tensors), str(path), metadata={**content.texts, **lists})
