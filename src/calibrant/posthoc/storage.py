"""A fitted map on disk: a folder with `map.safetensors` and `map.json` (`files/tensor_folder.py`).

The header holds method, version, settings, the hash and split of the data, certificate and guard. A chain holds the
descriptions of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrant.errors import MapError
from calibrant.files import outputs, tensor_folder
from calibrant.posthoc.map import Chain, FitRecord, FittedMap

LAYOUT = tensor_folder.Layout("map", outputs.MAP, version=1, again="fit the map again", command="calibrant fit")
TENSORS, HEADER = LAYOUT.tensors, LAYOUT.header


def save(fitted: FittedMap, folder: str | PathLike[str]) -> Path:
    """Write the map, whole or not at all."""
    return tensor_folder.write(LAYOUT, folder, {"method": fitted.method, "map": describe(fitted)}, fitted.tensors())


def load(folder: str | PathLike[str]) -> FittedMap:
    """Read the map of a folder and check it against its hashes."""
    path = Path(folder)
    tensor_folder.check(LAYOUT, path)
    header, tensors = tensor_folder.read(LAYOUT, path)
    try:
        return build(header["map"], tensors, path)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise MapError(
            f"{path / HEADER} does not describe a map of this version ({error}); fit the map again"
        ) from error


def describe(fitted: FittedMap) -> dict[str, Any]:
    """Method, settings and record in plain JSON types. A chain holds the descriptions of its parts."""
    out: dict[str, Any] = {"method": fitted.method, "settings": fitted.settings(), "record": asdict(fitted.record)}
    if isinstance(fitted, Chain):
        out["maps"] = [describe(m) for m in fitted.maps]
    return out


def build(described: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> FittedMap:
    """Build the map that `describe` described."""
    from calibrant.posthoc import MAPS

    record = restored(described["record"])
    if described["method"] == Chain.method:
        parts = []
        for i, part in enumerate(described["maps"]):
            own = {name.removeprefix(f"{i}."): t for name, t in tensors.items() if name.startswith(f"{i}.")}
            parts.append(build(part, own, path))
        return Chain(tuple(parts), record=record)
    if described["method"] not in MAPS:
        raise MapError(
            f"{path / HEADER} holds a {described['method']!r} map, which this version does not know; upgrade"
        )
    values: dict[str, Any] = {**tensors, **{name: tuples(value) for name, value in described["settings"].items()}}
    return MAPS[described["method"]](**values, record=record)


def restored(said: Mapping[str, Any]) -> FitRecord:
    """The record from what `asdict` and JSON made of it."""
    known = {f.name: f.name in ("ranking", "items", "classes") for f in fields(FitRecord)}  # True for tuples
    return FitRecord(**{k: tuples(v) if known[k] else v for k, v in said.items() if k in known})


def tuples(value: Any) -> Any:
    """Turn lists into tuples: JSON has no tuples, and frozen records have no lists."""
    return tuple(tuples(v) for v in value) if isinstance(value, list) else value
