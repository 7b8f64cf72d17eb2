"""`.safetensors`: tensors by name; text (split, classes, ids, provenance) in the header's metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from calibrant.files.arrays import Arrays, Content
from calibrant.files.paths import readable


def read(path: Path) -> Arrays:
    from safetensors import safe_open

    with readable(path, "this .safetensors file"), safe_open(str(path), framework="pt") as stored:
        names, meta = tuple(stored.keys()), dict(stored.metadata() or {})

    def load(name: str) -> Any:
        with readable(path, f"key {name!r}"), safe_open(str(path), framework="pt") as stored:
            return stored.get_tensor(name)

    return Arrays(path, names, load, meta)


def write(path: Path, content: Content) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    lists = {name: json.dumps(list(values), ensure_ascii=False) for name, values in content.lists.items()}
    try:
        save_file(dict(content.tensors), str(path), metadata={**content.texts, **lists})
    except SafetensorError as error:  # a full disk; the other formats raise OSError too
        raise OSError(str(error)) from error
