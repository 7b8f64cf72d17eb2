"""The folder of a run: checks before it is used, the records written before the first step, and reading networks back.

A run may come from anyone. Its records carry hashes, and nothing in it may lead out of the folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from calibrant.data import Data
from calibrant.errors import FileError, InputError
from calibrant.files import hashed, locks, outputs
from calibrant.files.paths import check_links, inside, visible
from calibrant.provenance import command
from calibrant.training import checkpoint
from calibrant.training.environment import environment
from calibrant.training.networks import Own, copied, maker, network_of
from calibrant.training.recipe import Recipe, read
from calibrant.training.settings import build
from calibrant.types import SCHEMA, Split, jsonable

if TYPE_CHECKING:
    from lightning.fabric import Fabric

RECORDS = ("selection", "recipe", "data", "environment", "levels", "targets", "metrics")


@dataclass(frozen=True)
class About:
    """`data.json`: what the networks of a run take and predict."""

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    sizes: Mapping[str, int]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    schema: int = SCHEMA


@dataclass(frozen=True)
class Trained:
    """The networks of a run as they predict (with EMA, their averages), and the shape and scale of their inputs."""

    members: tuple[nn.Module, ...]
    recipe: Recipe
    epoch: int
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    note: str = ""  # for people, about checkpoints that were skipped


# -- reading -------------------------------------------------------------------------------------------------------


def load(run: str | Path, network: Own | None = None) -> Trained:
    """The networks of a run's newest intact checkpoint, in evaluation mode on the CPU.

    `network` is for a run of your own network: the network, a function that makes one, or `module:factory`.
    """
    check_records(Path(run))
    notes: list[str] = []
    folder = chosen(Path(run))
    if not (folder / "recipe.json").is_file() or not (folder / "data.json").is_file():
        raise FileError(f"{folder} is not a run: it has no recipe.json; give a folder that `calibrant train -o` wrote")
    recipe = read(folder / "recipe.json")
    about = read_about(folder)
    if about.name != recipe.data.name:
        raise FileError(
            f"{folder}: data.json is of {about.name!r}, but recipe.json of {recipe.data.name!r}; they are of two runs"
        )
    found = checkpoint.latest(folder / "checkpoint", notes.append)
    if found is None:
        raise FileError(f"{folder} has no checkpoint yet; run `calibrant train` on it first")
    part = "average" if recipe.ema else "model"
    remedy = f"{recipe.network.name}@{run} instead of {run}, or calibrant.training.load({str(run)!r}, network=…)"
    own = maker(recipe.network.name, copied(network), str(folder), remedy)
    members = []
    for m in range(recipe.members):
        prefix = f"member.{m}.{part}."
        weights = {k.removeprefix(prefix): t for k, t in found.tensors.items() if k.startswith(prefix)}
        try:
            member = network_of(recipe, len(about.classes), about.shape, own=own)
            member.load_state_dict(weights)
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            why = " ".join(str(error).split())[:200]
            raise FileError(f"the weights of {folder} do not fit its recipe.json and data.json: {why}") from error
        members.append(member.eval())
    about_inputs = (about.classes, about.shape, about.mean, about.std)
    return Trained(tuple(members), recipe, found.epoch, *about_inputs, note="; ".join(notes))


def check_records(folder: Path) -> None:
    """Refuse a run with an edited or damaged record, or a link that leads outside, whatever is read from it later.

    The records of its grid points and of its vanilla twin are checked too."""
    check_links(folder)
    for path in visible(folder, "**/*.json"):
        if path.stem in RECORDS:
            hashed.read(path)


def read_about(folder: Path) -> About:
    path = folder / "data.json"
    try:
        return build(About, hashed.read(path))
    except (InputError, KeyError) as error:
        raise FileError(f"{path}: {error}") from error


def chosen(folder: Path, which: str = "chosen") -> Path:
    """The folder of the run itself. For a search, that is the chosen point inside it."""
    record = folder / "selection.json"
    if not record.is_file():
        return folder
    point = hashed.read(record).get(which)
    return inside(folder, point.get("folder") if isinstance(point, dict) else None, record)


# -- writing -------------------------------------------------------------------------------------------------------


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder of a run or a search. Refuse a folder that holds something else or that another process uses."""
    outputs.check_target(folder, outputs.RUN)
    check_links(folder)
    with locks.alone_in(folder):
        yield


def check_recipe(folder: Path, recipe: Recipe) -> None:
    """Refuse a folder with another recipe's training or search, naming the settings that differ."""
    check_records(folder)
    record = folder / "recipe.json"
    begun = any(checkpoint.exists(path) for path in (folder / "checkpoint", *visible(folder, "points/*/checkpoint")))
    if not record.is_file() or not begun:  # nothing can be lost: no training reached the end of its first epoch
        return
    old, new = read(record).content(), recipe.content()
    differ = sorted(k for k in new if old.get(k) != new[k])
    if differ:
        raise InputError(f"{folder} holds a run with other settings ({', '.join(differ)}); choose another folder")


def check_data(folder: Path, data: Data) -> None:
    """Refuse to resume with other classes, inputs or sizes of the parts that the run learns from.

    The parts that it is judged on may differ."""
    if not (folder / "data.json").exists() or not checkpoint.exists(folder / "checkpoint"):
        return
    old, new = _learned(read_about(folder)), _learned(_about(data, ""))
    differ = [key for key in new if old[key] != new[key]]
    if differ:
        words = ", ".join(key if key == "classes" else f"{key} {old[key]}, now {new[key]}" for key in differ)
        raise InputError(f"{folder} was started with other data ({words}); choose another folder")


def _about(data: Data, name: str) -> About:
    sizes = {split.value: len(part.y) for split, part in data.splits.items()}
    return About(name, tuple(data.classes), tuple(data.shape), sizes, data.mean, data.std)


def _learned(about: About) -> dict[str, Any]:
    sizes = {s.value: about.sizes.get(s.value) for s in (Split.TRAIN, Split.VALIDATION)}
    return {"classes": about.classes, "shape": list(about.shape), **sizes}


def write_records(folder: Path, recipe: Recipe, data: Data, fabric: Fabric) -> None:
    """Write the records of a training that is about to begin: its recipe, data and environment."""
    folder.mkdir(parents=True, exist_ok=True)
    where = environment(fabric.device) | {"command": command(), "processes": fabric.world_size}
    # the recipe first: the folder counts as a run as soon as it is there
    hashed.write(folder / "recipe.json", recipe.plain())
    hashed.write(folder / "data.json", jsonable(vars(_about(data, recipe.data.name))))
    hashed.write(folder / "environment.json", where)
