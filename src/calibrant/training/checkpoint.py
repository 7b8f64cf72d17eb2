"""Where a run stands, on disk: `NNNN.safetensors` (every tensor) and `NNNN.json` (the rest, and the hashes).

The tensors are written first and the JSON, which carries their sha256 and its own, last: a kill between the two leaves
the previous checkpoint in charge. Two are kept. A file that was truncated or edited fails its hash; the one
before it is used, and that is said. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialise
from torch import Tensor

from calibrant.errors import FileError
from calibrant.files import atomic, sealed
from calibrant.files.listing import visible
from calibrant.training.recipe import digest
from calibrant.types import SCHEMA

KEEP = 2
"""Checkpoints kept: the last and the one before it."""


@dataclass(frozen=True)
class Checkpoint:
    """After `epoch` whole epochs: named tensors and plain JSON values."""

    epoch: int
    tensors: Mapping[str, Tensor]
    plain: Mapping[str, Any]


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write, verify nothing is half there, and drop all but the last two. Returns the JSON's path."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{checkpoint.epoch:05d}"
    # safetensors refuses tensors that share memory, and wants them dense
    tensors = {
        name: t.detach().to("cpu", copy=True).contiguous(memory_format=torch.contiguous_format)
        for name, t in checkpoint.tensors.items()
    }
    content = serialise(tensors)
    atomic.write_bytes(stem.with_suffix(".safetensors"), content)
    sha256 = hashlib.sha256(content).hexdigest()
    body = {"schema": SCHEMA, "epoch": checkpoint.epoch, "tensors_sha256": sha256, "plain": checkpoint.plain}
    text = json.dumps({**body, "sha256": digest(body)}, allow_nan=False)
    atomic.write_text(stem.with_suffix(".json"), text)
    _tidy(folder)
    return stem.with_suffix(".json")


def latest(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest intact checkpoint; None if there never was one. What is passed over is said, with the reason."""
    there = epochs(folder)
    for epoch in there:
        try:
            return read(folder, epoch)
        except FileError as error:
            say(f"{error}; using the checkpoint before it")
    if there:
        raise FileError(f"no checkpoint in {folder} is intact; delete the run's folder to start again")
    return None


def exists(folder: Path) -> bool:
    """Whether there is one, intact or not."""
    return bool(epochs(folder))


def read(folder: Path, epoch: int) -> Checkpoint:
    """One checkpoint, checked against its hashes."""
    stem = folder / f"{epoch:05d}"
    head, tensors = stem.with_suffix(".json"), stem.with_suffix(".safetensors")
    try:
        body = sealed.table(head)
        claimed = body.pop("sha256")
    except (FileError, KeyError) as error:
        raise FileError(f"checkpoint {head} is unreadable or truncated") from error
    if claimed != digest(body):
        raise FileError(f"checkpoint {head} was edited: its hash does not match")
    if not tensors.is_file():
        raise FileError(f"checkpoint {tensors} is missing")
    if _sha256(tensors) != body["tensors_sha256"]:
        raise FileError(f"checkpoint {tensors} is truncated or edited: its hash does not match")
    try:
        return Checkpoint(body["epoch"], load_file(tensors), body["plain"])
    except SafetensorError as error:  # the hash matched, so this was written by something else
        raise FileError(f"checkpoint {tensors} is not a safetensors file: {error}") from error


def split_state(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A `Stateful`'s state into what safetensors holds and what JSON holds."""
    tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)}
    return tensors, {k: v for k, v in state.items() if not isinstance(v, Tensor)}


def epochs(folder: Path) -> list[int]:
    """Epochs that have a JSON, newest first."""
    return sorted((int(p.stem) for p in visible(folder, "*.json") if p.stem.isdecimal()), reverse=True)


def _tidy(folder: Path) -> None:
    """Drop all but the last two, and what kills left: a machine that is taken away often would fill the disk."""
    kept = epochs(folder)[:KEEP]
    for old in epochs(folder)[KEEP:]:
        (folder / f"{old:05d}.json").unlink(missing_ok=True)  # first: without it the tensors are nobody's
    for path in visible(folder, "*.safetensors"):
        if path.stem.isdecimal() and int(path.stem) < kept[-1]:
            path.unlink(missing_ok=True)
    atomic.sweep(folder, r"\d{5}\.(json|safetensors)")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
