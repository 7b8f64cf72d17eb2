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

from calibrant.errors import FileError, MapError
from calibrant.files import outputs, tensor_folder
from calibrant.files.paths import near
from calibrant.posthoc.map import Chain, FitRecord, FittedMap

LAYOUT = tensor_folder.Layout("map", outputs.MAP, version=1, again="fit the map again")
TENSORS, HEADER = LAYOUT.tensors, LAYOUT.header


def save(fitted: FittedMap, folder: str | PathLike[str]) -> Path:
    """Write the map, whole or not at all."""
    return tensor_folder.write(LAYOUT, folder, {"method": fitted.method, "map": describe(fitted)}, fitted.tensors())


def load(folder: str | PathLike[str]) -> FittedMap:
    """Read the map of a folder and check it against its hashes."""
    path = Path(folder)
    if not path.is_dir():
        if path.exists():
            raise FileError(f"{path} is a file, not a folder with a fitted map; `calibrant fit … -o MAP/` makes one")
        remedy = near(path) or f"; make one with `calibrant fit … -o {path}`"
        raise FileError(f"{path} is not a folder with a fitted map{remedy}")
    _is_a_map(path)
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
    settings = {name: tuples(value) for name, value in described["settings"].items()}
    return MAPS[described["method"]].restore(tensors, settings, record)


def _is_a_map(path: Path) -> None:
    """Refuse a folder that holds something else, and say how to read that."""
    if (path / HEADER).exists() or (path / TENSORS).exists():
        return
    found = outputs.kind_of(path)
    readers = {
        outputs.ENSEMBLE: f"calibrant.PEP.load({str(path)!r}, model)",
        outputs.RUN: f"calibrant.training.load({str(path)!r}), or fit a map with "
        f"`calibrant fit {path / 'calibration.npz'} -o MAP/`",
        outputs.RULE: f"calibrant.load({str(path)!r})",
    }
    if found in readers:
        raise MapError(f"{path} holds {found.called}, not a fitted map; read it with {readers[found]}")
    raise MapError(f"{path} holds no fitted map: {HEADER} is missing; `calibrant fit … -o MAP/` makes one")


def restored(said: Mapping[str, Any]) -> FitRecord:
    """The record from what `asdict` and JSON made of it."""
    known = {f.name: f.name in ("ranking", "items", "classes") for f in fields(FitRecord)}  # True for tuples
    return FitRecord(**{k: tuples(v) if known[k] else v for k, v in said.items() if k in known})


def tuples(value: Any) -> Any:
    """Turn lists into tuples: JSON has no tuples, and frozen records have no lists."""
    return tuple(tuples(v) for v in value) if isinstance(value, list) else value
