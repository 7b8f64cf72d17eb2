"""The folder of a run: whether it may be used, and what is written into it before the first step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.data import Data
from calibrant.errors import FileError, InputError
from calibrant.files import atomic
from calibrant.files.listing import visible
from calibrant.train import checkpoint as disk
from calibrant.train.environment import command, environment
from calibrant.train.recipe import Recipe, read
from calibrant.types import SCHEMA, Split, jsonable

if TYPE_CHECKING:
    from lightning.fabric import Fabric


def check(folder: Path, recipe: Recipe) -> None:
    """Nothing is written yet. A folder that holds another recipe's training is refused, naming what differs."""
    atomic.check_place(folder, "keep the run in")
    there = folder / "recipe.json"
    if there.is_file():
        old, new = read(there).plain(), recipe.plain()
        differ = sorted(k for k in new if k not in ("name", "about") and old.get(k) != new[k])
        # without a checkpoint there is nothing of the old run to lose: it failed before its first epoch's end
        if differ and disk.exists(folder / "checkpoint"):
            raise InputError(f"{folder} holds a run with other settings ({', '.join(differ)}); choose another folder")
    elif any(p.name != "log.jsonl" for p in visible(folder)):
        raise FileError(f"{folder} is not empty and not a run; name a new folder")


def check_data(folder: Path, data: Data) -> None:
    """A run that was begun goes on with classes, inputs and parts of the sizes that it learned from."""
    there = folder / "data.json"
    if not there.is_file() or not disk.exists(folder / "checkpoint"):
        return
    try:
        old = _learned(json.loads(there.read_text("utf-8")))
    except (ValueError, TypeError, AttributeError):
        return  # damaged, and about to be written anew
    new = _learned(jsonable(_about(data)))
    differ = [key for key in new if old[key] is not None and old[key] != new[key]]
    if differ:
        said = ", ".join(key if key == "classes" else f"{key} {old[key]}, now {new[key]}" for key in differ)
        raise InputError(f"{folder} was begun with other data ({said}); choose another folder")


def _about(data: Data) -> dict[str, Any]:
    return {
        "classes": list(data.classes),
        "shape": list(data.shape),
        "sizes": {split.value: len(part.y) for split, part in data.splits.items()},
    }


def _learned(about: dict[str, Any]) -> dict[str, Any]:
    """Of what `data.json` says, that which a network learns from: it may be judged on as many items as one likes."""
    sizes = {s.value: about.get("sizes", {}).get(s.value) for s in (Split.TRAIN, Split.VALIDATION)}
    return {"classes": about.get("classes"), "shape": about.get("shape"), **sizes}


def describe(folder: Path, recipe: Recipe, data: Data, fabric: Fabric) -> None:
    """What is about to run, with what, on what."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "schema": SCHEMA,
        "name": recipe.data.name,
        **_about(data),
        "mean": None if data.mean is None else list(data.mean),
        "std": None if data.std is None else list(data.std),
    }
    where = environment(fabric.device) | {"command": command(), "processes": fabric.world_size}
    # the recipe first: a folder is a run from the moment it is there
    atomic.write_text(folder / "recipe.json", json.dumps(recipe.plain(), indent=2))
    atomic.write_text(folder / "data.json", json.dumps(jsonable(about), indent=2))
    atomic.write_text(folder / "environment.json", json.dumps(where, indent=2))
