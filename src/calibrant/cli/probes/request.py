"""A request to `calibrant probe`: its options, and its models and data, loaded and checked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.console import say
from calibrant.cli.model_data import Inputs, data_name, device_of, model_data, normalisation_of, say_notes
from calibrant.cli.options import numbers, separated
from calibrant.errors import InputError
from calibrant.files import outputs

if TYPE_CHECKING:
    import torch
    from torch import nn

    from calibrant.data import Batches, Data
    from calibrant.data.records import Part
    from calibrant.ensembles.reference import Reference
    from calibrant.types import Predictions

FEW = 256
"""Items of probes that need much memory or time, unless --limit gives another number."""
BATCH = 1000


@dataclass(frozen=True)
class Settings:
    """Options of single probes."""

    batches: Annotated[int, typer.Option(min=1, help="hessian, signs: number of mini-batches of the training part")] = (
        20
    )
    batch: Annotated[int | None, typer.Option(min=1, help="hessian: items per mini-batch; by default the recipe's")] = (
        None
    )
    eigenvalues: Annotated[
        int, typer.Option(min=1, help="hessian: how many eigenvalues of each mini-batch, the largest first")
    ] = 1
    method: Annotated[str, typer.Option(help="hessian: lanczos, or power as in the paper")] = "lanczos"
    dropout: Annotated[bool, typer.Option(help="hessian, fourier: switch dropout off; in the paper it is active")] = (
        True
    )
    grid: Annotated[int, typer.Option(min=3, help="landscape: points along each direction")] = 21
    masks: Annotated[
        int, typer.Option(min=0, help="landscape: dropout masks, one landscape each; 0: without dropout")
    ] = 0
    through: Annotated[
        str | None, typer.Option(help="landscape: two other runs B,C: the plane goes through all three")
    ] = None
    layers: Annotated[
        str | None, typer.Option(help="variance, fourier, neighbours: names of layers; by default the building blocks")
    ] = None
    passes: Annotated[int, typer.Option(min=2, help="variance: passes with dropout")] = 10
    sigma: Annotated[float | None, typer.Option(help="pep_effect: PEP's σ; by default fitted on validation")] = None
    attack: Annotated[str, typer.Option(help="attack: fgsm, pgd, frequency_fgsm")] = "fgsm,pgd"
    epsilon: Annotated[str, typer.Option(help="attack: budgets in pixels of [0, 1]")] = "0.01,0.02,0.03"
    ensemble: Annotated[str | None, typer.Option(help="attack: dropout, to attack the pool of MC dropout")] = None
    members: Annotated[
        int | None, typer.Option(min=1, help="attack, pep_effect, overfitting: members of the ensemble")
    ] = None
    ruler: Annotated[str, typer.Option(help="robustness: ddn (cheap) or cw (the paper's)")] = "ddn"
    levels: Annotated[int, typer.Option(min=1, help="robustness: how many equally large levels")] = 10
    variance: Annotated[
        str,
        typer.Option(
            help="robustness: variance over runs of the probability of: true, predicted, confidence or classes"
        ),
    ] = "true"

    def checked(self) -> dict[str, Any]:
        """Return {option: value}; what commas separate becomes a list."""
        lists = {name: text and separated(text) for name, text in (("through", self.through), ("layers", self.layers))}
        return {**vars(self), **lists, "attack": separated(self.attack), "epsilon": budgets(self.epsilon)}


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
        import torch

        whole = self.data[split]
        if self.limit is None or self.limit >= whole.n:
            return whole
        return whole.take(torch.arange(self.limit), whole.split)

    def place(self, what: str) -> Path:
        """Return the folder of a probe's results."""
        return (self.kept or self.store) / what

    def rehearse(self) -> None:
        """Refuse a network that cannot read this data or has other classes, before anything is computed."""
        from calibrant.cli.model_check import blank_outputs, check_outputs
        from calibrant.functional.inputs import as_split

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
        from calibrant.data import Batches

        return Batches(self.part(split), size, device=self.device, mean=model.mean, std=model.std)

    def first(self, most: int) -> Request:
        """Return the same request for the first `most` items, unless --limit gives another number."""
        return replace(self, limit=self.limit or most)

    def few(self, model: Reference, split: str) -> list[Any]:
        """Return the first FEW items in small batches, for probes that need much memory or time."""
        return list(self.first(FEW).batches(model, split, 64))

    def few_hash(self, split: str) -> str:
        """Return the content hash of the items of `few`."""
        from calibrant.training.distances import items_hash

        return items_hash(self.first(FEW).part(split))

    def predictions(self, model: Reference, split: str, members: Sequence[nn.Module] | None = None) -> Predictions:
        """Return a model's predictions for these items; several members as [M, N, K]."""
        from calibrant.ensembles.single import predict

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
    from calibrant.ensembles.reference import resolve
    from calibrant.functional.inputs import as_split

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


def budgets(text: str) -> list[float]:
    """Return the numbers of --epsilon, each in 0 … 1."""
    found = list(dict.fromkeys(numbers(text, "--epsilon", float)))
    if not all(0 <= value <= 1 for value in found):
        raise InputError(f"--epsilon {text!r}: budgets are of pixels, in 0 … 1")
    return found


def _check_store(
    store: Path, model: Reference, data: Data, splits: Sequence[str], ruler: str, limit: int | None
) -> None:
    """Refuse a folder that cannot be written to, unless it holds every distance already."""
    from calibrant.training import distances
    from calibrant.types import Split

    folder, parts = store / distances.FOLDER, [Split(split) for split in splits if Split(split) in data.splits]
    if outputs.is_writable(folder / ruler):
        return
    if distances.needs_attack(model.members, data, parts, folder, ruler=ruler, limit=limit):
        outputs.check_place(folder / ruler, "keep the results in with -o")  # it is made with what is kept in it
