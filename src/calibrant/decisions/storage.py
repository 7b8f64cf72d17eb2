"""A rule on disk with its map inside: `rule.safetensors` and `rule.json` (`files/tensor_folder.py`)."""

from __future__ import annotations

from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from calibrant.decisions.rule import Rule
from calibrant.errors import MapError
from calibrant.files import outputs, tensor_folder
from calibrant.posthoc import storage
from calibrant.posthoc.map import FittedMap

LAYOUT = tensor_folder.Layout(
    "rule", outputs.RULE, version=1, again="choose the rule again", command="calibrant decide"
)
MAP = "map."


def save(rule: Rule, folder: str | PathLike[str]) -> Path:
    """Write the rule, whole or not at all."""
    body = {
        "kind": rule.kind,
        "settings": rule.settings(),
        "record": asdict(rule.record),
        "map": None if rule.map is None else storage.describe(rule.map),
    }
    tensors = rule.tensors() | {f"{MAP}{k}": t for k, t in (rule.map.tensors() if rule.map else {}).items()}
    return tensor_folder.write(LAYOUT, folder, body, tensors)


def load(folder: str | PathLike[str]) -> FittedMap | Rule:
    """Read the fitted map or the rule of a folder and check it against its hashes."""
    path = Path(folder)
    return load_rule(path) if tensor_folder.holds(LAYOUT, path) else storage.load(path)


def load_rule(folder: str | PathLike[str]) -> Rule:
    """Read the rule of a folder; a fitted map is refused."""
    path = Path(folder)
    tensor_folder.check(LAYOUT, path)
    header, tensors = tensor_folder.read(LAYOUT, path)
    from calibrant.decisions import RULES

    try:
        if header["kind"] not in RULES:
            raise MapError(f"{path} holds a rule of {header['kind']!r}, which this version does not know; upgrade")
        of_map = {k.removeprefix(MAP): t for k, t in tensors.items() if k.startswith(MAP)}
        own: dict[str, Any] = {k: t for k, t in tensors.items() if not k.startswith(MAP)}
        return RULES[header["kind"]](
            **own,
            **{k: storage.tuples(v) for k, v in header["settings"].items()},
            map=None if header["map"] is None else storage.build(header["map"], of_map, path),
            record=storage.restored(header["record"]),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, MapError):
            raise
        raise MapError(
            f"{path / LAYOUT.header} does not describe a rule of this version ({error}); {LAYOUT.again}"
        ) from error
