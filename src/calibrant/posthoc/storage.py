"""A fitted map on disk: a folder with `map.safetensors` and `map.json`. No pickle is written, none is read.

The header holds method, version, settings, the data's hash and split, certificate and guard, the SHA-256
of the tensors' file and of its own content: what was truncated or edited is refused by name. Chains nest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrant.errors import FileError, MapError
from calibrant.files import atomic, outputs
from calibrant.files.damage import readable
from calibrant.posthoc.map import Chain, FitRecord, FittedMap
from calibrant.types import jsonable

VERSION = 1
"""Of the folder's layout. A newer one is refused; older ones are read."""
TENSORS, HEADER = "map.safetensors", "map.json"


def save(fitted: FittedMap, folder: str | PathLike[str]) -> Path:
    """Write the map, whole or not at all."""
    from safetensors.torch import save as to_bytes

    import calibrant

    data = to_bytes({name: t.detach().cpu().contiguous() for name, t in fitted.tensors().items()})
    header = {
        "format": "calibrant map",
        "version": VERSION,
        "calibrant": calibrant.__version__,
        "method": fitted.method,
        "map": describe(fitted),
        "tensors": hashlib.sha256(data).hexdigest(),
    }
    header = jsonable(header)
    header["content"] = _content(header)
    path = Path(folder)
    with atomic.folder(path, outputs.MAP) as temporary:
        (temporary / TENSORS).write_bytes(data)
        (temporary / HEADER).write_text(json.dumps(header, indent=2, ensure_ascii=False, allow_nan=False), "utf-8")
    return path


def load(folder: str | PathLike[str]) -> FittedMap:
    """The map of a folder, checked against its hashes."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    path = Path(folder)
    if not path.is_dir():
        if path.exists():
            raise FileError(f"{path} is a file, not a folder with a fitted map; `calibrant fit … -o MAP/` makes one")
        raise FileError(f"{path} is not a folder with a fitted map; make one with `calibrant fit … -o {path}`")
    _is_a_map(path)
    header = _header(path)
    data = _bytes(path / TENSORS)
    if hashlib.sha256(data).hexdigest() != header.get("tensors"):
        raise MapError(f"{path / TENSORS} was truncated or edited: its hash is not the header's; fit the map again")
    try:
        tensors = from_bytes(data)
        return build(header["map"], tensors, path)
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise MapError(
            f"{path / HEADER} does not describe a map of this version ({error}); fit the map again"
        ) from error


def describe(fitted: FittedMap) -> dict[str, Any]:
    """Method, settings and record; a chain holds the descriptions of its parts."""
    out: dict[str, Any] = {"method": fitted.method, "settings": fitted.settings(), "record": asdict(fitted.record)}
    if isinstance(fitted, Chain):
        out["maps"] = [describe(m) for m in fitted.maps]
    return out


def build(described: Mapping[str, Any], tensors: Mapping[str, Tensor], path: Path) -> FittedMap:
    """The map that `describe` described."""
    from calibrant.posthoc import MAPS

    known = {f.name: f.name in ("ranking", "items") for f in fields(FitRecord)}  # the two that are tuples
    said = {k: v for k, v in described["record"].items() if k in known}
    record = FitRecord(**{k: _tuples(v) if known[k] else v for k, v in said.items()})
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
    settings = {name: _tuples(value) for name, value in described["settings"].items()}
    return MAPS[described["method"]].restore(tensors, settings, record)


def _header(path: Path) -> dict[str, Any]:
    where = path / HEADER
    text = _bytes(where)
    try:
        header = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise MapError(f"{where} is truncated or not JSON; fit the map again") from error
    if not isinstance(header, dict) or header.get("format") != "calibrant map":
        raise MapError(f"{where} is not the header of a fitted map")
    version = header.get("version")
    if isinstance(version, int) and version > VERSION:
        raise MapError(
            f"{where} has version {version}, newer than {VERSION}, which this calibrant reads; upgrade calibrant"
        )
    said = header.pop("content", None)
    if said is None or said != _content(header):
        raise MapError(f"{where} was edited: its content does not have the hash it was written with; fit the map again")
    return header


def _is_a_map(path: Path) -> None:
    """Folders that something else here wrote are named, with what reads them."""
    if (path / HEADER).exists() or (path / TENSORS).exists():
        return
    if (path / "ensemble.json").exists():
        raise MapError(
            f"{path} holds an ensemble, not a fitted map; read it with calibrant.PEP.load({str(path)!r}, model)"
        )
    if (path / "recipe.json").exists():
        raise MapError(
            f"{path} holds a training run, not a fitted map; read it with calibrant.training.load({str(path)!r}), or "
            f"fit a map with `calibrant fit {path / 'calibration.npz'} -o MAP/`"
        )
    raise MapError(f"{path} holds no fitted map: {HEADER} is missing; `calibrant fit … -o MAP/` makes one")


def _content(header: Mapping[str, Any]) -> str | None:
    try:
        text = json.dumps(header, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8")).hexdigest()
    except ValueError:  # NaN is not JSON, half a surrogate pair is not UTF-8: Python reads both, we never wrote them
        return None


def _bytes(path: Path) -> bytes:
    if not path.exists():
        raise MapError(f"{path} is missing: the map's folder is incomplete; fit the map again")
    with readable(path, "this part of a map"):
        return path.read_bytes()


def _tuples(value: Any) -> Any:
    """JSON has no tuples; frozen records have no lists."""
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
