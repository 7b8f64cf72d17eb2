"""Robustness levels for AR-AdaLS (AR §4): measured on a vanilla twin, given, or recomputed during training.

    epoch 0            The twin (same recipe, one-hot labels, one network) is trained in RUN/vanilla. Its training and
                       validation items are attacked, and their distances are cut into R equally large levels.
    refresh_after      The members in training are attacked as one pool, and the levels are cut again.

Every stage leaves files and is not repeated. Distances lie beside the attacked network, and `RUN/levels.json` records
the ones that a run started with. Its entry "from" says where they came from. The entry is never followed: files outside
a run are read only if the user names them (`--levels`), and the hash of the network tells whether they are the right
ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from calibrant.attacks import levels as cut
from calibrant.data import Data
from calibrant.errors import CalibrantError, FileError, InputError, escaped
from calibrant.files import hashed
from calibrant.targets import TARGETS, Levels
from calibrant.training import checkpoint, distances
from calibrant.training.distances import FOLDER, Distances
from calibrant.training.networks import Own
from calibrant.training.recipe import Recipe, read
from calibrant.training.run_folder import load
from calibrant.training.settings import Choice
from calibrant.types import SCHEMA, Split

if TYPE_CHECKING:
    from calibrant.training.run import How

VANILLA = "vanilla"
RECORD = "levels.json"
PARTS = (Split.TRAIN, Split.VALIDATION)


def are_needed(recipe: Recipe) -> bool:
    """Whether the recipe's targets need robustness levels."""
    return hasattr(TARGETS.get(recipe.targets.name), "ruler")


def target_option(recipe: Recipe, name: str) -> Any:
    """The value of an option of the recipe's targets, or its default."""
    return recipe.targets.options.get(name, getattr(TARGETS[recipe.targets.name], name))


def vanilla(recipe: Recipe) -> Recipe:
    """The twin that is attacked: same network and training, one-hot labels, one member, no transforms (AR §4)."""
    about = f"the vanilla twin of {recipe.name or 'this recipe'}, attacked for its levels"
    return replace(
        recipe, name=f"{recipe.name}:vanilla", about=about, targets=Choice("one_hot"), transforms=(), members=1
    )


def levels_of(train: Distances, validation: Distances, data: Data, count: int) -> Levels:
    """`count` equally large levels of each part; training levels by place in the data set, −1 for other places."""
    by_place = torch.full((int(data[Split.TRAIN].index.max()) + 1,), -1, dtype=torch.long)
    by_place[train.index] = cut(train.distance, count)
    return Levels(by_place, cut(validation.distance, count))


# -- checks before anything is written -----------------------------------------------------------------------------


def check(recipe: Recipe, how: How, data: Data) -> None:
    """Refuse what cannot work, before anything is written or trained."""
    if not are_needed(recipe):
        if how.levels is not None:
            raise InputError(f"--levels is for targets that need robustness levels, not {recipe.targets.name!r}")
        return
    _check_refreshes(recipe)
    count = target_option(recipe, "levels")
    for split in PARTS:
        if count > data[split].n:
            more = "train on more items" if split is Split.TRAIN else "hold out more"
            raise InputError(f"{count} levels of {data[split].n} {split} items; lower targets.levels, or {more}")
        if how.refresh is None:  # these items will be attacked, after a whole training
            distances.check_attackable(data, split)
    if how.levels is not None:
        _check_given(Path(how.levels), recipe, data)


def _check_refreshes(recipe: Recipe) -> None:
    """Refuse a refresh after the last epoch: it would never happen, and the run would be called by the wrong method."""
    after = list(target_option(recipe, "refresh_after"))
    late = [epoch for epoch in after if epoch >= recipe.epochs]
    if late:
        share = [recipe.epochs * (i + 1) // (len(after) + 1) for i in range(len(after))]
        inside = ",".join(str(epoch) for epoch in sorted({*share} - {0}))
        raise InputError(
            f"targets.refresh_after is {after}, but the run ends after {recipe.epochs} epochs: after "
            f"{', '.join(map(str, late))} levels would not be recomputed; use --set targets.refresh_after=[{inside}]"
        )


def _check_given(folder: Path, recipe: Recipe, data: Data) -> None:
    """Refuse levels of other items."""
    if not folder.is_dir():
        raise FileError(f"--levels {folder} is neither a run nor a folder of robustness")
    run = attacked_run(folder)
    if run is None:
        _read(folder, data, str(target_option(recipe, "ruler")))
        return
    theirs, ours = read(run / "recipe.json").data, recipe.data
    if theirs != ours:
        raise InputError(
            f"--levels {run} was trained on {_words(theirs)}, but this recipe trains on {_words(ours)}: "
            "levels must be of the same items"
        )


def _words(data: Any) -> str:
    sizes = "" if data.sizes is None else f", sizes {dict(data.sizes)}"
    return f"{data.name} (seed {data.seed}{sizes})"


def attacked_run(folder: Path) -> Path | None:
    """The run that `--levels` means: the twin in a run of AR-AdaLS, or the run itself. None if this is not a run."""
    return next((run for run in (folder / VANILLA, folder) if (run / "recipe.json").is_file()), None)


def _read(folder: Path, data: Data, ruler: str) -> tuple[Distances, Distances]:
    """Distances from their files, checked to be of these items, of one network, and by the recipe's ruler."""
    paths = [folder / f"{split.value}.safetensors" for split in PARTS]
    found = [distances.read(path) for path in paths]
    for split, path, each in zip(PARTS, paths, found, strict=True):
        each.check(data, split, str(path))
        if each.ruler != ruler:
            raise InputError(
                f"{path} was measured by {each.ruler}, and this recipe's ruler is {ruler}; "
                f"add --set targets.ruler={each.ruler}, or measure by {ruler}"
            )
    for name, words in (("network", "two networks"), ("edition", f"two editions of {ruler}")):
        if getattr(found[0], name) != getattr(found[1], name):
            raise InputError(
                f"{paths[0]} and {paths[1]} are of {words}, but levels must be of one; "
                f"measure both with `calibrant probe RUN/ --what robustness --ruler {ruler} --split train,validation`"
            )
    return found[0], found[1]


# -- the source of a run's levels ----------------------------------------------------------------------------------


@dataclass
class LevelSource:
    """Call `prepare()` before training; then `source(members, epoch)` is the loop's `refresh`."""

    recipe: Recipe
    folder: Path
    how: How
    data: Data
    device: torch.device
    first: Levels | None = field(default=None, repr=False)

    def prepare(self) -> None:
        """Get the levels to start with. A run that started with other levels is refused."""
        started = checkpoint.exists(self.folder / "checkpoint")
        if started and self.how.levels is None:
            return  # the checkpoint holds them
        found, source = self._start()
        record = self._record(source, found)
        old = read_record(self.folder) if started and (self.folder / RECORD).is_file() else record
        if old["distances"] != record["distances"]:
            raise InputError(
                f"{self.folder} was started with other levels (from {old['from']}, relative to the run); "
                "pass those with --levels, or choose another folder"
            )
        for each in found:
            if each.unmoved and not self.how.quiet:
                print(escaped(f"{self.ruler} found no other prediction for {each.describe_unmoved()}"), file=sys.stderr)
        self.first = levels_of(*found, self.data, self.count)
        hashed.write(self.folder / RECORD, record)

    def __call__(self, members: Sequence[nn.Module], epoch: int) -> Levels:
        if epoch == 0:
            assert self.first is not None, "prepare() comes first"
            return self.first
        store = self.folder / FOLDER / f"epoch-{epoch:05d}"
        return levels_of(*self._measured(members, store, store, quiet=True), self.data, self.count)

    @property
    def ruler(self) -> str:
        return str(target_option(self.recipe, "ruler"))

    @property
    def count(self) -> int:
        return int(target_option(self.recipe, "levels"))

    def _start(self) -> tuple[tuple[Distances, Distances], Path]:
        """Return (the distances to start with, the run or folder that they are from)."""
        given = None if self.how.levels is None else Path(self.how.levels)
        run = self._twin() if given is None else attacked_run(given)
        if run is None:
            assert given is not None
            return _read(given, self.data, self.ruler), given
        members, own = load(run, self.how.network).members, self.folder / FOLDER / VANILLA
        return self._measured(members, run / FOLDER, own, quiet=self.how.quiet), run

    def _twin(self) -> Path:
        from calibrant.training.run import train

        if self.how.devices > 1:
            raise InputError(
                "with --devices, levels must be measured first: train the vanilla twin, run "
                "`calibrant probe RUN/ --what robustness --split train,validation`, then use --levels RUN"
            )
        how = replace(self.how, refresh=None, levels=None, listen=None, keep_epochs=False, keep_weights=0)
        train(vanilla(self.recipe), self.folder / VANILLA, how, self.data)
        return self.folder / VANILLA

    def _measured(
        self, members: Sequence[nn.Module], store: Path, spare: Path, quiet: bool
    ) -> tuple[Distances, Distances]:
        options: dict[str, Any] = {"ruler": self.ruler, "device": self.device}
        options["progress"] = not quiet and sys.stderr.isatty()
        train, validation = (
            distances.load_or_measure(members, self.data, split, store, spare=spare, **options) for split in PARTS
        )
        return train, validation

    def _record(self, source: Path, found: Sequence[Distances]) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "from": os.path.relpath(source.resolve(), self.folder.resolve()),
            "ruler": self.ruler,
            "levels": self.count,
            "network": found[0].network,
            "distances": {d.split.value: d.sha256() for d in found},
            "unmoved": {d.split.value: d.unmoved for d in found},
        }


def read_record(folder: Path) -> dict[str, Any]:
    """The content of RUN/levels.json."""
    record = hashed.read(folder / RECORD)
    if not {"from", "distances", "network"} <= set(record):
        raise FileError(f"{folder / RECORD} names no distances; delete it and pass the run's levels with --levels")
    return record


def is_source(place: Path, folder: Path, own: Own | None = None) -> bool:
    """Whether `place` holds the network (or its distances) whose levels the run in `folder` was trained with."""
    record = read_record(folder)
    try:
        stored = place / f"{Split.TRAIN.value}.safetensors"
        if stored.is_file():
            network = distances.read(stored).network
        else:
            network = distances.network_hash(load(place, own).members)
    except (CalibrantError, OSError):
        return False  # missing, unreadable or damaged
    return bool(record["network"] == network)
