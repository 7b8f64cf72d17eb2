"""A request to `calibrant probe`: its models and data, loaded and checked, and its options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from calibrant.cli.console import say
from calibrant.cli.model_check import blank_outputs, check_outputs
from calibrant.cli.model_data import Inputs, data_name, device_of, model_data, normalisation_of, say_notes
from calibrant.cli.options import separated
from calibrant.data import Batches, Data
from calibrant.data.records import Part
from calibrant.ensembles.prediction import predict
from calibrant.ensembles.reference import Reference, resolve
from calibrant.errors import InputError
from calibrant.files import outputs
from calibrant.functional.inputs import as_split
from calibrant.training import distances
from calibrant.types import Predictions, Split

FEW = 256
"""Items of probes that need much memory or time, unless --limit gives another number."""
BATCH = 1000


@dataclass(frozen=True)
class Request:
    """Networks side by side, the data, and every option."""

    models: tuple[Reference, ...]  # with the mean and std that their inputs are normalised by
    data: Data
    splits: tuple[str, ...]
    limit: int | None
    device: torch.device
    store: Path  # the folder of the results
    options: dict[str, Any] = field(default_factory=dict)
    progress: bool = False
    runs: tuple[Reference, ...] = ()  # more runs of the first model's training, for the variance over runs
    kept: Path | None = None  # the folder of what was measured of each model; by default the store

    def part(self, split: str) -> Part:
        """Return the items that are probed: all of the split, or its first `limit`."""
        whole = self.data[split]
        if self.limit is None or self.limit >= whole.n:
            return whole
        return whole.take(torch.arange(self.limit), whole.split)

    def place(self, what: str) -> Path:
        """Return the folder of a probe's results."""
        return (self.kept or self.store) / what

    def rehearse(self) -> None:
        """Refuse a network that cannot read this data or has other classes, before anything is computed."""
        every, split = (*self.models, *self.runs), as_split(self.splits[0])
        outputs = blank_outputs([model.name for model in every], every, self.data, split, -1)
        check_outputs(outputs, self.data.name, self.data.classes, self.data[split].y)

    def network(self, model: Reference) -> nn.Module:
        """Return the model's first member, on the device."""
        return model.members[0].to(self.device)

    def inputs(self, model: Reference) -> Data:
        """Return the data with the mean and std that the model's inputs are normalised by."""
        return replace(self.data, mean=model.mean, std=model.std)

    def batches(self, model: Reference, split: str, size: int = BATCH) -> Batches:
        """Return the items that are probed, normalised for the model."""
        return Batches(self.part(split), size, device=self.device, mean=model.mean, std=model.std)

    def first(self, most: int) -> Request:
        """Return the same request for the first `most` items, unless --limit gives another number."""
        return replace(self, limit=self.limit or most)

    def few(self, model: Reference, split: str) -> list[Any]:
        """Return the first FEW items in small batches, for probes that need much memory or time."""
        return list(self.first(FEW).batches(model, split, 64))

    def few_hash(self, split: str) -> str:
        """Return the content hash of the items of `few`."""
        return distances.items_hash(self.first(FEW).part(split))

    def predictions(self, model: Reference, split: str, members: Sequence[nn.Module] | None = None) -> Predictions:
        """Return a model's predictions for these items; several members as [M, N, K]."""
        networks = [m.to(self.device) for m in members or model.members]
        return predict(
            networks if len(networks) > 1 else networks[0],
            self.batches(model, split),
            device=self.device,
            split=split,
            classes=self.data.classes,
            source=model.name,
        )


def resolved(
    names: Sequence[str],
    models: Sequence[str],
    runs: Sequence[str],
    split: str,
    limit: int | None,
    inputs: Inputs,
    out: Path | None,
    device: str,
    options: dict[str, Any],
) -> Request:
    """Load and check the models, the data and the folder that the command line names."""
    moments = inputs.moments
    splits = tuple(as_split(name).value for name in separated(split))
    if not splits:
        raise InputError("--split is empty; pass train, validation, calibration or test")
    place = device_of(device)
    found = tuple(resolve(model) for model in (*models, *runs))
    first = found[0]
    name = data_name(inputs.data, first)
    store = out if out is not None else Path(models[0]) if Path(models[0]).is_dir() else None
    if store is None:
        raise InputError(f"{models[0]} is not a run; pass a folder for the results with -o")
    loaded = model_data(name, first, inputs.data_root, None)
    _check_once([*models, *runs])
    if "robustness" in names:
        _check_store(store, first, loaded, splits, str(options["ruler"]), limit)
        _say_recipes([models[0], *runs], [first, *found[len(models) :]])
    say_notes(found)
    fed_by = (normalisation_of(model, loaded, name, moments) for model in found)
    found = tuple(replace(model, mean=mean, std=std) for model, (mean, std) in zip(found, fed_by, strict=True))
    compared, more = found[: len(models)], found[len(models) :]
    kept = store if out is not None else store / "probe"
    return Request(compared, loaded, splits, limit, place, store, options, sys.stderr.isatty(), runs=more, kept=kept)


def _check_once(models: Sequence[str]) -> None:
    """Refuse a model that is given twice."""
    places = [str(Path(text).resolve()) if Path(text).is_dir() else text for text in models]
    for i, place in enumerate(places):
        if place in places[:i]:
            raise InputError(f"{models[i]} is named twice; pass each model once")


def _say_recipes(models: Sequence[str], found: Sequence[Reference]) -> None:
    """Print a note if the runs of a variance over runs have other recipes."""
    for text, other in zip(models, found, strict=True):
        if other.recipe != found[0].recipe:
            differ = "they differ in more than the seed"
            say(f"note: {text} was trained with another recipe than {models[0]}: {differ}", err=True)


def _check_store(
    store: Path, model: Reference, data: Data, splits: Sequence[str], ruler: str, limit: int | None
) -> None:
    """Refuse a folder that cannot be written to, unless it holds every distance already."""
    folder, parts = store / distances.FOLDER, [Split(split) for split in splits if Split(split) in data.splits]
    if outputs.is_writable(folder / ruler):
        return
    if distances.needs_attack(model.members, data, parts, folder, ruler=ruler, limit=limit):
        outputs.check_place(folder / ruler, "keep the results in with -o")  # it is made with what is kept in it
