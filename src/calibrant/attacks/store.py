"""Distances on disk, one file per chunk: a killed measurement continues after the last finished chunk.

    STORE/robustness.json        what was measured: hash of the network, ruler and its settings, items, chunk
    STORE/00000.safetensors …    `distance` of a chunk, with the hash of its inputs

Each file is written whole or not at all. A store of another model, ruler or data is refused by its hash, and one of an
earlier edition of the rulers by its number.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from calibrant.attacks.networks import contents, modules
from calibrant.errors import FileError, InputError
from calibrant.files import atomic, hashed, safetensors
from calibrant.files.arrays import Content
from calibrant.files.hashed import tensor_hash
from calibrant.files.paths import visible
from calibrant.nn.antialias import blurpooled
from calibrant.nn.surgery import smoothed
from calibrant.types import SCHEMA

HEADER = "robustness.json"
EDITION = 9
"""Raised when a ruler with the same settings finds other distances: chunks of two editions do not mix."""
_WORDS = {
    "edition": "another edition of the rulers",
    "model": "another model",
    "ruler": "another ruler",
    "settings": "other settings of the ruler",
    "n": "another number of items",
}


@dataclass(frozen=True)
class Store:
    """A folder that holds, or will hold, the distances that `header` describes."""

    folder: Path
    header: Mapping[str, Any]

    @property
    def chunk(self) -> int:
        return int(self.header["chunk"])

    def get(self, number: int, data: str) -> Tensor | None:
        """The chunk's distances if they are there; an error if they are of other inputs."""
        path = self._path(number)
        if not path.is_file():
            return None
        try:
            held = safetensors.read(path)
            distance: Tensor = held.load("distance")
        except FileError as error:
            raise FileError(f"{path}: truncated or edited; remove it, and its items are measured again") from error
        if held.meta.get("sha256") not in (None, tensor_hash(distance)):
            raise FileError(f"{path}: edited, its hash does not match; remove it, and its items are measured again")
        if held.meta.get("data") != data:
            raise InputError(
                f"{path} holds distances of other data (another data set, split, order or normalisation); "
                "choose another store or remove this one"
            )
        return distance

    def put(self, number: int, data: str, distance: Tensor) -> None:
        """Write a chunk. The header is written with the first one, so that a refused input leaves nothing behind."""
        if not (self.folder / HEADER).is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic.write_text(self.folder / HEADER, json.dumps(self.header, indent=2, ensure_ascii=False))
        meta = {"data": data, "sha256": tensor_hash(distance)}
        with atomic.file(self._path(number)) as path:
            safetensors.write(path, Content({"distance": distance.contiguous()}, {}, meta))

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:05d}.safetensors"


def open_store(folder: str | Path, header: Mapping[str, Any], chunk: int | None, default: int) -> Store:
    """The store in `folder`, or a new one to be created there. An existing one keeps its chunk size."""
    folder = Path(folder)
    path = folder / HEADER
    if not path.is_file():
        atomic.check_place(folder, "store distances in")
        if visible(folder):
            raise InputError(f"{folder} holds something other than distances (no {HEADER}); choose another store")
        return Store(folder, {"schema": SCHEMA, "edition": EDITION, **header, "chunk": chunk or default})
    try:
        held = hashed.table(path)
        if (own := int(held["chunk"])) < 1:
            raise ValueError(f"chunk: {own}")
    except (FileError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path}: not a header of distances ({error}); remove the folder and measure again") from error
    asked = {"edition": EDITION, **header}
    for name, words in _WORDS.items():
        if held.get(name) != asked[name]:
            then, now = _difference(held.get(name), asked[name])
            raise InputError(
                f"{folder} holds distances of {words} ({name}: {then}, now {now}); "
                "choose another store or remove this one"
            )
    if chunk is not None and chunk != own:
        raise InputError(f"{folder} was begun in chunks of {own}, not {chunk}; leave chunk out to continue it")
    return Store(folder, held)


def _plain(value: Any) -> bool:
    """Is it a number, a text, or several of them?"""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_plain(one) for one in value)
    return isinstance(value, (int, float, str))


def weights_hash(predictor: Any) -> str:
    """Content hash of a predictor: its networks (layers, smoothing, weights), tensors and plain settings."""
    digest = hashlib.sha256(type(predictor).__name__.encode())
    networks, tensors_held = modules(predictor), []
    if not isinstance(predictor, torch.nn.Module):
        if isinstance(predictor, FunctionType):
            code = predictor.__code__
            digest.update(code.co_code + _written((code.co_consts, code.co_names)))
        # names with an underscore are caches
        own = {k: v for k, v in sorted(getattr(predictor, "__dict__", {}).items()) if not k.startswith("_")}
        digest.update(json.dumps({k: v for k, v in own.items() if _plain(v)}).encode())
        tensors_held = _tensors(own.values() if own else contents(predictor))
    if not networks and not tensors_held:
        raise InputError(
            "this predictor shows neither a network nor a tensor, so a store cannot tell it from another; "
            "pass the network itself, or leave store out"
        )
    for network in networks:
        digest.update(_written(network) + _written({**smoothed(network), **blurpooled(network)}))
        for name, tensor in network.state_dict().items():
            if isinstance(tensor, Tensor):
                digest.update(name.encode())
                digest.update(tensor_hash(tensor).encode())
    for tensor in tensors_held:
        digest.update(tensor_hash(tensor).encode())
    return digest.hexdigest()


def _written(value: Any) -> bytes:
    """Its repr without memory addresses, which differ in the next process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value)).encode()


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among the values, and in mappings among them."""
    parts = [each for value in values for each in (value.values() if isinstance(value, Mapping) else (value,))]
    return [each for each in parts if isinstance(each, Tensor)]


def _difference(then: Any, now: Any) -> tuple[str, str]:
    """Both as text; of settings only those that differ."""
    if isinstance(then, dict) and isinstance(now, dict):
        names = [name for name in now if then.get(name) != now[name]]
        then, now = ({name: held.get(name) for name in names} for held in (then, now))
    return _short(then), _short(now)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text[:12] + "…" if len(text) == 64 else text
