"""Everything of a training that changes, out to a checkpoint and back: members, target policy, penalties, history."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrant.errors import InputError
from calibrant.protocols import Stateful
from calibrant.training import checkpoint as disk
from calibrant.training.components import Components
from calibrant.training.progress import Progress
from calibrant.training.recipe import Recipe
from calibrant.training.step import Member
from calibrant.types import jsonable

Row = dict[str, Any]


def save(
    folder: Path, epoch: int, recipe: Recipe, members: Sequence[Member], parts: Components, history: list[Row]
) -> None:
    tensors: dict[str, Tensor] = {}
    for i, member in enumerate(members):
        tensors |= {f"member.{i}.{k}": v for k, v in member.tensors().items()}
    plain: Row = {"history": jsonable(history), "recipe": recipe.key(), "states": {}}
    for name, thing in _stateful(parts).items():
        mine, plain["states"][name] = disk.split_state(thing.state())
        tensors |= {f"{name}.{k}": v for k, v in mine.items()}
    disk.save(folder, disk.Checkpoint(epoch, tensors, plain))


def resume(
    folder: Path | None, recipe: Recipe, members: Sequence[Member], parts: Components, progress: Progress
) -> tuple[int, list[Row]]:
    """Load the newest intact checkpoint into the members; (finished epochs, their rows), or (0, [])."""
    found = None if folder is None else disk.latest(folder, progress.say)
    if found is None:
        return 0, []
    if found.plain["recipe"] != recipe.key():
        raise InputError(f"the checkpoints in {folder} are of another recipe; choose another folder")
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
