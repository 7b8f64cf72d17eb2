"""The data that `predict`, `probe` and `stress` run a model on: a named data set, a file of arrays, or an image folder.

The default is what the model was trained on, with the same split. A file or folder takes the model's classes and, where
the model states one, its image size. Where a verb can use them, labels may be maps with one class per pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.console import say
from calibrant.cli.options import DataRoot, numbers
from calibrant.errors import InputError

if TYPE_CHECKING:
    import torch

    from calibrant.data import Batches, Data
    from calibrant.data.records import Part
    from calibrant.ensembles.reference import Reference

ARRAYS = (".npz", ".npy")
OWN = "own"
"""Value of `--mean` and `--std` that takes them from the data."""

Moment = tuple[float, ...] | None


@dataclass(frozen=True)
class Inputs:
    """Which data, where they are stored, and how they are normalised."""

    data: Annotated[
        str | None,
        typer.Option(
            help="a data set (`calibrant list datasets`), some of its classes as cifar10[0-4], FILE.npz or a folder; "
            "by default what the model was trained on"
        ),
    ] = None
    data_root: DataRoot = None
    mean: Annotated[
        str | None,
        typer.Option(help="per channel, e.g. 0.5,0.5,0.5, or own; by default the model's, else the data set's"),
    ] = None
    std: Annotated[str | None, typer.Option(help="per channel, like --mean")] = None

    @property
    def moments(self) -> tuple[Moment | str, Moment | str]:
        return moment(self.mean, "--mean"), moment(self.std, "--std")


@dataclass(frozen=True)
class Setting:
    """The models and the data, loaded, and the networks on the device."""

    found: Sequence[Reference]
    networks: Sequence[Any]
    data: Data
    name: str
    device: torch.device
    mean: Moment
    std: Moment

    @property
    def first(self) -> Reference:
        return self.found[0]

    @property
    def own(self) -> bool:
        """Whether the data set is the one that the model was trained on."""
        return self.name == self.first.data

    def batches(self, size: int) -> Callable[[str], Batches]:
        """A function from the name of a split to its items, normalised for the model."""
        from calibrant.data import Batches
        from calibrant.functional.inputs import as_split

        normalised = partial(Batches, device=self.device, mean=self.mean, std=self.std)
        return lambda split: normalised(self.data[as_split(split)], size)


def load_setting(
    models: Sequence[str],
    inputs: Inputs,
    device: str,
    seed: int | None = None,
    *,
    maps: bool = False,
    ignore_index: int | None = None,
) -> Setting:
    """Load the models and the data."""
    from calibrant.ensembles.reference import resolve

    moments, place = inputs.moments, device_of(device)
    found = [resolve(each) for each in models]
    say_notes(found)
    name = data_name(inputs.data, found[0])
    loaded = model_data(name, found[0], inputs.data_root, seed, maps=maps, ignore_index=ignore_index)
    mean, std = normalisation_of(found[0], loaded, name, moments)
    networks = [m.to(place) for reference in found for m in reference.members]
    return Setting(found, networks, loaded, name, place, mean, std)


def device_of(name: str) -> torch.device:
    """The torch device; `auto` is the GPU if there is one."""
    import torch

    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"unknown --device {name!r}; use auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no CUDA device; use cpu")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def say_notes(found: Sequence[Reference]) -> None:
    """Print what a person should know about the models, e.g. that a run is unfinished."""
    for reference in found:
        if reference.note:
            say(f"note: {reference.note}", err=True)


def data_name(asked: str | None, model: Reference) -> str:
    """The data set that was asked for, else the one that the model was trained on."""
    from calibrant.data import stored_name

    if asked is None and model.data is None:
        raise InputError("--data is missing: this model does not say what it was trained on")
    return asked or stored_name(model.data or "", model.name)


def moment(text: str | None, option: str) -> Moment | str:
    """The value of `--mean` or `--std`: numbers separated by commas, or `own`."""
    if text is None or text == OWN:
        return text
    found = tuple(numbers(text, option, float, ", or 'own'"))
    if option == "--std" and min(found) <= 0:
        raise InputError(f"--std {text!r}: images are divided by it, so every number must be greater than 0")
    return found


def check_channels(asked: tuple[Moment | str, Moment | str], data: Data, part: Part) -> None:
    """Refuse `--mean` and `--std` unless they have one number, or one per channel."""
    for option, found in zip(("--mean", "--std"), asked, strict=True):
        if found is None or isinstance(found, str):
            continue
        shape = data.shape or part.inputs(slice(1)).shape[1:]
        channels = shape[0] if shape else 1  # of the first item, if sizes differ; single numbers have no axis
        if len(found) not in (1, channels):
            raise InputError(f"{option} has {len(found)} numbers; {data.name} has {channels} channel(s)")


def normalisation_of(
    model: Reference, data: Data, name: str, asked: tuple[Moment | str, Moment | str] = (None, None)
) -> tuple[Moment, Moment]:
    """The (mean, std) that normalise the inputs.

    They are what was asked for, else the model's own constants, else those of a named data set. Data from a user's own
    code or files are not normalised by default: only the user knows what the network was trained on.
    """
    import torch

    from calibrant.data import is_named
    from calibrant.data.records import channel_moments

    part = next(iter(data.splits.values()))
    own: tuple[Moment, Moment] = (data.mean, data.std)
    if OWN in asked and (data.mean is None or Path(name).is_dir()):  # folders state ImageNet's moments
        if part.items is not None or part.x.dtype == torch.long:
            raise InputError(f"{name}: its own mean and std are not known; give --mean and --std as numbers")
        own = channel_moments(part.x)
    known = own if is_named(name) else (None, None)
    mean, std = (
        mine if word == OWN else word or theirs or usual
        for word, mine, theirs, usual in zip(asked, own, (model.mean, model.std), known, strict=True)
    )
    assert not isinstance(mean, str) and not isinstance(std, str)
    return mean, std


def inputs_of(data: Data, mean: Moment, std: Moment) -> str:
    """How the data are normalised before the network sees them, in words; every verb prints it beside its results."""
    from calibrant.data.batches import normalisation

    return normalisation(next(iter(data.splits.values())), mean, std)


def is_arrays(name: str) -> bool:
    """Whether this is a file of images and labels. Such a file may not contain every class."""
    return Path(name).suffix in ARRAYS


def model_data(
    name: str,
    model: Reference,
    root: Path | None,
    seed: int | None,
    *,
    maps: bool = False,
    ignore_index: int | None = None,
) -> Data:
    """The data set `name`, with the model's split, classes and image size where it is the model's own or a folder."""
    from calibrant.data import load
    from calibrant.data.image_arrays import load_file
    from calibrant.data.image_folder import common_shape, match_classes
    from calibrant.data.label_maps import check_one_label_each

    path, own = Path(name), name == model.data
    if is_arrays(name):
        return load_file(path, model.classes, maps=maps, ignore_index=ignore_index)
    loaded = load(
        name,
        root=root,
        seed=seed if seed is not None else model.data_seed if own else 0,
        sizes=model.sizes if own else None,
        shape=model.shape or common_shape(path),
        ignore_index=model.ignore_index if ignore_index is None and own else ignore_index,
    )
    if not maps:
        check_one_label_each(loaded.splits, name)
    return match_classes(loaded, model.classes) if path.is_dir() and model.classes is not None else loaded
