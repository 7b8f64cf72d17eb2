"""Where the levels of AR-AdaLS come from (AR §4): pre-computed on a vanilla twin, handed in, or made on the fly.

    epoch 0            the twin (same recipe, one-hot labels, one network) is trained into RUN/vanilla, its training and
                       validation items are attacked, and their distances cut into R equal levels
    refresh_after      the members in training are attacked themselves, pooled, and the levels cut anew

Every stage leaves files and is not repeated: distances lie beside the network that was attacked, and `RUN/levels.json`
says which ones a run was begun with.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from calibrant.attacks import levels as cut
from calibrant.data import Data
from calibrant.errors import FileError, InputError, escaped
from calibrant.files import atomic
from calibrant.targets import TARGETS, Levels
from calibrant.training import checkpoint, distances, origin
from calibrant.training.distances import FOLDER, Distances
from calibrant.training.recipe import Recipe, read
from calibrant.training.settings import Choice
from calibrant.types import Split

if TYPE_CHECKING:
    from calibrant.training.run import How

VANILLA = "vanilla"
PARTS = (Split.TRAIN, Split.VALIDATION)


def wanted(recipe: Recipe) -> bool:
    """Whether the recipe's targets ask for levels of robustness."""
    return hasattr(TARGETS.get(recipe.targets.name), "ruler")


def check(recipe: Recipe, how: How, data: Data, *, begun: bool = False) -> None:
    """What can be wrong, before anything is written or trained."""
    if not wanted(recipe):
        if how.levels is not None:
            raise InputError(f"--levels is for targets that want levels of robustness, not {recipe.targets.name!r}")
        return
    if not begun:
        _check_refreshes(recipe)
    count = setting(recipe, "levels")
    for split in PARTS:
        if count > data[split].n:
            more = "train on more items" if split is Split.TRAIN else "hold out more"
            raise InputError(f"{count} levels of {data[split].n} {split} items; lower targets.levels, or {more}")
        if how.refresh is None:  # what will be attacked, after a whole training
            distances.attackable(data, split)
    if how.levels is not None:
        _check_given(Path(how.levels), recipe, data)


def _check_refreshes(recipe: Recipe) -> None:
    """Levels that are to be cut anew after the last epoch, or later, never are: it would be another method's name."""
    after = list(setting(recipe, "refresh_after"))
    late = [epoch for epoch in after if epoch >= recipe.epochs]
    if late:
        share = [recipe.epochs * (i + 1) // (len(after) + 1) for i in range(len(after))]
        inside = ",".join(str(epoch) for epoch in sorted({*share} - {0}))
        raise InputError(
            f"targets.refresh_after is {after} and the run ends after {recipe.epochs} epochs: after "
            f"{', '.join(map(str, late))} levels would not be cut anew; say --set targets.refresh_after=[{inside}]"
        )


def _check_given(folder: Path, recipe: Recipe, data: Data) -> None:
    """Levels of other items are refused before a run is begun with them."""
    if not folder.is_dir():
        raise FileError(f"--levels {folder} is neither a run nor a folder of robustness")
    run = attacked_run(folder)
    if run is None:
        _read(folder, data, str(setting(recipe, "ruler")))
        return
    theirs, ours = read(run / "recipe.json").data, recipe.data
    if theirs != ours:
        raise InputError(
            f"--levels {run} was trained on {_said(theirs)}, and this recipe on {_said(ours)}: "
            "levels must be of the same items"
        )
    from calibrant.training.run import load

    ruler = str(setting(recipe, "ruler"))
    store = run / FOLDER
    if not atomic.takes_files(store / ruler) and distances.to_measure(
        load(run).members, data, PARTS, store, ruler=ruler
    ):
        raise FileError(
            f"the {ruler} distances of --levels {run} are still to be measured, and there is no permission to keep "
            f"them there; `calibrant probe {run} --ruler {ruler} --split train,validation -o FOLDER`, then "
            f"--levels FOLDER/{FOLDER}/{ruler}"
        )


def attacked_run(folder: Path) -> Path | None:
    """The run that --levels names: a run of AR-AdaLS is named for the twin that it holds; None: it is no run."""
    return next((run for run in (folder / VANILLA, folder) if (run / "recipe.json").is_file()), None)


def _read(folder: Path, data: Data, ruler: str) -> tuple[Distances, Distances]:
    """Distances from their files alone: of just these items, of one network, and by the ruler that the record names."""
    paths = [folder / f"{split.value}.safetensors" for split in PARTS]
    found = [distances.read(path) for path in paths]
    for split, path, each in zip(PARTS, paths, found, strict=True):
        each.check(data, split, str(path))
        if each.ruler != ruler:
            raise InputError(
                f"{path} was measured by {each.ruler}, and this recipe's ruler is {ruler}; "
                f"add --set targets.ruler={each.ruler}, or measure by {ruler}"
            )
    two = [what for what in ("network", "edition") if getattr(found[0], what) != getattr(found[1], what)]
    if two:
        of = f"two {two[0]}s" if two[0] == "network" else f"two editions of {ruler}"
        raise InputError(
            f"{paths[0]} and {paths[1]} are of {of}, and levels must be of one; "
            f"measure both with `calibrant probe RUN/ --what robustness --ruler {ruler} --split train,validation`"
        )
    return found[0], found[1]


def setting(recipe: Recipe, name: str) -> Any:
    """An option of the recipe's targets, or its default."""
    return recipe.targets.options.get(name, getattr(TARGETS[recipe.targets.name], name))


def vanilla(recipe: Recipe) -> Recipe:
    """The twin that is attacked: the same network and training with one-hot labels, alone and unmixed (AR §4)."""
    about = f"the vanilla twin of {recipe.name or 'this recipe'}, attacked for its levels"
    return replace(
        recipe, name=f"{recipe.name}:vanilla", about=about, targets=Choice("one_hot"), transforms=(), members=1
    )


@dataclass
class LevelSource:
    """`prepare()` before training; then `source(members, epoch)` is the loop's `refresh`."""

    recipe: Recipe
    folder: Path
    how: How
    data: Data
    device: torch.device
    first: Levels | None = field(default=None, repr=False)

    def prepare(self) -> None:
        """The levels to begin with, from wherever they come; a run that was begun with others is refused."""
        begun = checkpoint.exists(self.folder / "checkpoint")
        if begun and self.how.levels is None:
            return  # they are in the checkpoint
        found, place = self._begin()
        record = origin.describe(place, self.folder, found, self.ruler, self.count)
        old = origin.read(self.folder) if begun and (self.folder / origin.RECORD).is_file() else record
        if old["distances"] != record["distances"]:
            raise InputError(
                f"{self.folder} was begun with other levels (from {old['from']}, as seen from there); "
                "name those by --levels, or choose another folder"
            )
        for each in found:
            if each.unmoved and not self.how.quiet:
                print(escaped(f"{self.ruler} found no other prediction for {each.far()}"), file=sys.stderr)
        self.first = levels_of(*found, self.data, self.count)
        origin.write(self.folder, record)

    def __call__(self, members: Sequence[nn.Module], epoch: int) -> Levels:
        if epoch == 0:
            if self.first is None:
                self.prepare()
            assert self.first is not None
            return self.first
        store = self.folder / FOLDER / f"epoch-{epoch:05d}"
        found = [self._measured(members, store, split, quiet=True) for split in PARTS]
        return levels_of(found[0], found[1], self.data, self.count)

    @property
    def ruler(self) -> str:
        return str(setting(self.recipe, "ruler"))

    @property
    def count(self) -> int:
        return int(setting(self.recipe, "levels"))

    def _begin(self) -> tuple[tuple[Distances, Distances], Path]:
        given = self.how.levels
        if given is None:
            twin = self._twin()
            return self._of_run(twin), twin
        folder = Path(given)
        _check_given(folder, self.recipe, self.data)
        run = attacked_run(folder)
        found = _read(folder, self.data, self.ruler) if run is None else self._of_run(run)
        return found, folder if run is None else run

    def _twin(self) -> Path:
        from calibrant.training.run import train

        if self.how.devices > 1:
            raise InputError(
                "with --devices, levels are measured beforehand: train the vanilla twin, "
                "`calibrant probe RUN/ --what robustness --split train,validation`, then --levels RUN"
            )
        how = replace(self.how, refresh=None, levels=None, listen=None, keep_epochs=False, keep_weights=0)
        train(vanilla(self.recipe), self.folder / VANILLA, how, self.data)
        return self.folder / VANILLA

    def _of_run(self, run: Path) -> tuple[Distances, Distances]:
        from calibrant.training.run import load

        members = load(run).members
        found = [self._measured(members, run / FOLDER, split, quiet=self.how.quiet) for split in PARTS]
        return found[0], found[1]

    def _measured(self, members: Sequence[nn.Module], store: Path, split: Split, quiet: bool) -> Distances:
        return distances.measured(
            members,
            self.data,
            split,
            store,
            ruler=self.ruler,
            device=self.device,
            progress=not quiet and sys.stderr.isatty(),
        )


def levels_of(train: Distances, validation: Distances, data: Data, count: int) -> Levels:
    """R equally large levels of each part; training levels by the items' places, −1 elsewhere."""
    by_place = torch.full((int(data[Split.TRAIN].index.max()) + 1,), -1, dtype=torch.long)
    by_place[train.index] = _cut(train, count)
    return Levels(by_place, _cut(validation, count))


def _cut(found: Distances, count: int) -> Tensor:
    return cut(found.distance, count)


def _said(data: Any) -> str:
    sizes = "" if data.sizes is None else f", sizes {dict(data.sizes)}"
    return f"{data.name} (seed {data.seed}{sizes})"
