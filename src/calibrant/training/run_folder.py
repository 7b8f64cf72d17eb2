"""The folder of a run: whether it may be used, what is written into it before the first step, and how it is read.

A run is data that may come from anyone. Its records carry their hashes, and nothing in it leads outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant.data import Data
from calibrant.errors import FileError, InputError
from calibrant.files import atomic, locks, outputs, sealed
from calibrant.files.contained import check_links, inside
from calibrant.files.listing import visible
from calibrant.training import checkpoint as disk
from calibrant.training.environment import command, environment
from calibrant.training.recipe import Recipe, read
from calibrant.training.settings import build
from calibrant.types import SCHEMA, Split, jsonable

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class About:
    """`data.json`: what the networks of a run take and say."""

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    sizes: Mapping[str, int]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    schema: int = SCHEMA


RECORDS = ("selection", "recipe", "data", "environment", "levels", "targets", "metrics")


def opened(folder: Path) -> str:
    """Refuse a run with a record that was edited or damaged, or a link that leads outside, whatever is read of it then.

    Those of its points and its twin count as well. Returns what a person should know of the run."""
    check_links(folder)
    unsealed: list[str] = []
    for path in visible(folder, "**/*.json"):
        if path.stem in RECORDS:
            sealed.read(path, unsealed.append)
    said = f"{folder}: {len(unsealed)} records without a hash (calibrant 0.1 wrote none); they are taken as they are"
    return said if unsealed else ""


def about(folder: Path) -> About:
    path = folder / "data.json"
    try:
        return build(About, sealed.read(path))
    except (InputError, KeyError) as error:  # only where there is no hash
        raise FileError(f"{path}: {error}") from error


def chosen(folder: Path, which: str = "chosen") -> Path:
    """The folder of the run itself: of a search, the point that was chosen, which lies inside."""
    record = folder / "selection.json"
    if not record.is_file():
        return folder
    point = sealed.read(record).get(which)
    return inside(folder, point.get("folder") if isinstance(point, dict) else None, record)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder of a run, or of a search; refuse one that holds something else, or that another process holds."""
    atomic.check_place(folder, "keep the run in")
    outputs.check_target(folder, outputs.RUN)
    check_links(folder)
    with locks.alone_in(folder):
        yield


def check(folder: Path, recipe: Recipe) -> str:
    """Nothing is written yet. A folder that holds another recipe's training is refused, naming what differs.

    Returns what there is to be said about the folder."""
    said = opened(folder)
    there = folder / "recipe.json"
    if there.is_file():
        old, new = read(there).plain(), recipe.plain()
        differ = sorted(k for k in new if k not in ("name", "about") and old.get(k) != new[k])
        # without a checkpoint there is nothing of the old run to lose: it failed before its first epoch's end
        if differ and disk.exists(folder / "checkpoint"):
            raise InputError(f"{folder} holds a run with other settings ({', '.join(differ)}); choose another folder")
    return said


def check_data(folder: Path, data: Data) -> None:
    """A run that was begun goes on with classes, inputs and parts of the sizes that it learned from."""
    if not (folder / "data.json").exists() or not disk.exists(folder / "checkpoint"):
        return
    old, new = _learned(about(folder)), _learned(_about(data, ""))
    differ = [key for key in new if old[key] is not None and old[key] != new[key]]
    if differ:
        said = ", ".join(key if key == "classes" else f"{key} {old[key]}, now {new[key]}" for key in differ)
        raise InputError(f"{folder} was begun with other data ({said}); choose another folder")


def _about(data: Data, name: str) -> About:
    sizes = {split.value: len(part.y) for split, part in data.splits.items()}
    return About(name, tuple(data.classes), tuple(data.shape), sizes, data.mean, data.std)


def _learned(about: About) -> dict[str, Any]:
    """Of what `data.json` says, that which a network learns from: it may be judged on as many items as one likes."""
    sizes = {s.value: about.sizes.get(s.value) for s in (Split.TRAIN, Split.VALIDATION)}
    return {"classes": about.classes, "shape": list(about.shape), **sizes}


def describe(folder: Path, recipe: Recipe, data: Data, fabric: Fabric) -> None:
    """What is about to run, with what, on what."""
    folder.mkdir(parents=True, exist_ok=True)
    where = environment(fabric.device) | {"command": command(), "processes": fabric.world_size}
    # the recipe first: a folder is a run from the moment it is there
    sealed.write(folder / "recipe.json", recipe.plain())
    sealed.write(folder / "data.json", jsonable(vars(_about(data, recipe.data.name))))
    sealed.write(folder / "environment.json", where)
