"""The state of a training on disk: `NNNNN.safetensors` (all tensors) and `NNNNN.json` (the rest, and the hashes).

A checkpoint holds all that changes in training: members, optimisers, averages, target policy, penalties, history. The
tensors are written first. The JSON follows with their sha256 and its own, so a kill between the two leaves the previous
checkpoint in use. The last two are kept. A file that was truncated or edited fails its hash; then the checkpoint before
it is used, and a message says so. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialise
from torch import Tensor

from calibrant.errors import FileError, InputError
from calibrant.files import atomic, hashed
from calibrant.files.paths import visible
from calibrant.protocols import Stateful
from calibrant.training.recipe import Recipe, digest
from calibrant.types import SCHEMA, jsonable

if TYPE_CHECKING:
    from calibrant.training.components import Components
    from calibrant.training.step import Member

Row = dict[str, Any]
"""The numbers of one epoch."""

KEEP = 2
"""Checkpoints kept: the last and the one before it."""


@dataclass(frozen=True)
class Checkpoint:
    """The state after `epoch` whole epochs: named tensors and plain JSON values."""

    epoch: int
    tensors: Mapping[str, Tensor]
    plain: Mapping[str, Any]


# -- a training's state in and out ---------------------------------------------------------------------------------


def save_training(
    folder: Path, epoch: int, recipe: Recipe, members: Sequence[Member], parts: Components, history: list[Row]
) -> None:
    """Write the state after `epoch` epochs."""
    tensors: dict[str, Tensor] = {}
    for i, member in enumerate(members):
        tensors |= {f"member.{i}.{k}": v for k, v in member.tensors().items()}
    plain: Row = {"history": jsonable(history), "recipe": recipe.key(), "states": {}}
    for name, thing in _stateful(parts).items():
        state = thing.state()
        tensors |= {f"{name}.{k}": v for k, v in state.items() if isinstance(v, Tensor)}
        plain["states"][name] = {k: v for k, v in state.items() if not isinstance(v, Tensor)}
    save(folder, Checkpoint(epoch, tensors, plain))


def resume_training(
    folder: Path, recipe: Recipe, members: Sequence[Member], parts: Components, say: Callable[[str], None]
) -> tuple[int, list[Row]]:
    """Load the newest intact checkpoint into the members. Return (finished epochs, their rows), or (0, [])."""
    found = latest(folder, say)
    if found is None:
        return 0, []
    if found.plain["recipe"] != recipe.key():
        raise InputError(f"the checkpoints in {folder} belong to another recipe; choose another folder")
    for i, member in enumerate(members):
        member.load(dict(found.tensors), f"member.{i}.")
    for name, thing in _stateful(parts).items():
        mine = {k.removeprefix(f"{name}."): t for k, t in found.tensors.items() if k.startswith(f"{name}.")}
        thing.load({**mine, **found.plain["states"][name]})
    return found.epoch, list(found.plain["history"])


def _stateful(parts: Components) -> dict[str, Stateful]:
    things: dict[str, Any] = {"policy": parts.policy}
    for m, penalties in enumerate(parts.penalties):
        things |= {f"penalty.{m}.{i}": p for i, p in enumerate(penalties)}
    return {name: thing for name, thing in things.items() if isinstance(thing, Stateful)}


# -- files ---------------------------------------------------------------------------------------------------------


def save(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write the checkpoint and remove all but the last two. Returns the path of the JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{checkpoint.epoch:05d}"
    content = serialise(hashed.copied(checkpoint.tensors))
    atomic.write_bytes(stem.with_suffix(".safetensors"), content)
    sha256 = hashlib.sha256(content).hexdigest()
    body = {"schema": SCHEMA, "epoch": checkpoint.epoch, "tensors_sha256": sha256, "plain": checkpoint.plain}
    text = json.dumps({**body, "sha256": digest(body)}, allow_nan=False)
    atomic.write_text(stem.with_suffix(".json"), text)
    _remove_old(folder)
    return stem.with_suffix(".json")


def latest(folder: Path, say: Callable[[str], None]) -> Checkpoint | None:
    """The newest intact checkpoint; None if there is none. `say` is told which ones are skipped, and why."""
    found = epochs(folder)
    for epoch in found:
        try:
            return read(folder, epoch)
        except FileError as error:
            say(f"{error}; using the checkpoint before it")
    if found:
        raise FileError(f"no checkpoint in {folder} is intact; delete the run's folder to start again")
    return None


def exists(folder: Path) -> bool:
    """Whether the folder has a checkpoint, intact or not."""
    return bool(epochs(folder))


def read(folder: Path, epoch: int) -> Checkpoint:
    """One checkpoint, checked against its hashes."""
    stem = folder / f"{epoch:05d}"
    head, tensors = stem.with_suffix(".json"), stem.with_suffix(".safetensors")
    try:
        body = hashed.table(head)
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
    except SafetensorError as error:  # the hash matches, so another program wrote it
        raise FileError(f"checkpoint {tensors} is not a safetensors file: {error}") from error


def epochs(folder: Path) -> list[int]:
    """Epochs that have a JSON file, newest first."""
    return sorted((int(p.stem) for p in visible(folder, "*.json") if p.stem.isdecimal()), reverse=True)


def _remove_old(folder: Path) -> None:
    """Remove all but the last two checkpoints, and what killed writes left behind."""
    found = epochs(folder)
    for old in found[KEEP:]:
        (folder / f"{old:05d}.json").unlink(missing_ok=True)  # first: without it, nothing refers to the tensors
    for path in visible(folder, "*.safetensors"):
        if path.stem.isdecimal() and int(path.stem) < found[:KEEP][-1]:
            path.unlink(missing_ok=True)
    atomic.remove_leftovers(folder, r"\d{5}\.(json|safetensors)")


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
