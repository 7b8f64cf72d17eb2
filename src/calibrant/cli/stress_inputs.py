"""The inputs of `calibrant stress`: the model, its data, the shifted sets and the items to fit calibrators on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.ensemble_options import Ensembling
from calibrant.cli.model_data import Inputs, Setting, is_arrays, load_setting
from calibrant.cli.options import numbers, separated
from calibrant.errors import FileError, InputError, unknown

if TYPE_CHECKING:
    from calibrant.data import Data, Part
    from calibrant.diagnostics.stress import Choice, Material, Subject


@dataclass(frozen=True)
class Suite:
    """The shifts: which suites, types and severities, or files of shifted items."""

    suite: Annotated[
        str, typer.Option(help="corruptions, perturbations, ood, frequency, natural (separated by commas), or all")
    ] = "corruptions"
    subset: Annotated[str, typer.Option(help="the 15, 17 or 19 corruptions of the papers")] = "19"
    types: Annotated[str | None, typer.Option(help="corruptions by name, separated by commas")] = None
    severities: Annotated[str, typer.Option(help="1 … 5, separated by commas")] = "1,2,3,4,5"
    corruptions: Annotated[
        Path | None,
        typer.Option(help="read these files: TYPE.npy and labels.npy (CIFAR-10-C), or TYPE/SEVERITY/CLASS/*.jpg"),
    ] = None
    natural: Annotated[
        list[str] | None, typer.Option(help="a re-collected set: cifar10.1, FILE.npz or FOLDER; repeatable")
    ] = None
    outside: Annotated[
        list[str] | None, typer.Option(help="foreign items: cifar100, cifar10[5-9], photographs, …; repeatable")
    ] = None

    @property
    def paths(self) -> list[Any]:
        return [self.corruptions, *(self.natural or ()), *(self.outside or ())]

    def chosen(self) -> Choice:
        """The chosen shifts. Names are checked before anything is loaded."""
        from calibrant.report.stress_run import chosen
        from calibrant.shifts import SUBSETS

        if self.subset not in SUBSETS:
            raise unknown("subset of corruptions", self.subset, SUBSETS)
        made_here = self.corruptions is None
        types = tuple(separated(self.types)) if self.types is not None else SUBSETS[self.subset] if made_here else None
        severities = tuple(numbers(self.severities, "--severities", int))
        return chosen(self.suite, types, severities, self.natural or (), made_here=made_here)


def load_model(models: Sequence[str], inputs: Inputs, device: str) -> Setting:
    """The model and its data. Data from a file without class names get as many classes as the network has."""
    from calibrant.data.corruption_folder import type_folders
    from calibrant.diagnostics.stress import Subject
    from calibrant.files.paths import visible

    data = inputs.data
    if data is not None and Path(data).is_dir() and (visible(data, "*.npy") or type_folders(Path(data))):
        raise InputError(f"--data {data} holds corruptions, not a data set; pass --corruptions {data}")
    found = load_setting(models, inputs, device)
    if not is_arrays(found.name) or found.first.classes is not None:
        return found
    subject = Subject(found.networks[0], found.mean, found.std, device=found.device)
    return replace(found, data=_all_classes(found.data, subject, found.first.name, found.name))


def _all_classes(loaded: Data, subject: Subject, model: str, name: str) -> Data:
    """The data with as many classes as the network has: the labels of a small file may not show the last ones."""
    from calibrant.data.records import numbered_classes
    from calibrant.diagnostics.stress import Material
    from calibrant.diagnostics.stress.run import count_classes

    k = count_classes(subject, Material(loaded["test"], loaded.shape, device=subject.device), model, name)
    return replace(loaded, classes=numbered_classes(k)) if k > loaded.k else loaded


def _names(setting: Setting) -> tuple[str, ...]:
    """The names of the classes: the model's, else the data's."""
    return setting.first.classes or setting.data.classes


def subject_of(setting: Setting, ensembling: Ensembling, *, fit_on: str, batch: int, seed: int) -> Subject:
    """The predictor: one network, several pooled, or the ensemble that is asked for."""
    from calibrant.diagnostics.stress import Subject
    from calibrant.ensembles.deep import DeepEnsemble

    predictor: Any = ensembling.assemble(setting, setting.batches(batch), fit_on=fit_on, seed=seed)
    if predictor is None:
        predictor = setting.networks[0] if len(setting.networks) == 1 else DeepEnsemble(setting.networks)
    return Subject(predictor, setting.mean, setting.std, device=setting.device)


def material_of(
    setting: Setting,
    suite: Suite,
    split: str,
    calibration: str | None,
    *,
    root: Path | None,
    limit: int | None,
    seed: int,
    batch: int,
) -> Material:
    """The images of all cells, and the items of the split `calibration` (None: no calibrators)."""
    from calibrant.data.corruption_folder import corruption_folder
    from calibrant.data.ood import ood_images
    from calibrant.diagnostics.stress import Material
    from calibrant.diagnostics.stress.material import images_only, limited

    part = limited(images_only(setting.data[split], setting.name), limit)
    shape = setting.data.shape
    return Material(
        part,
        shape,
        None if calibration is None else images_only(setting.data[calibration], setting.name),
        None if suite.corruptions is None else corruption_folder(suite.corruptions, _names(setting), tuple(shape)),
        lambda name: ood_images(name, shape, n=limit or part.n, root=root, seed=seed),
        {name: shifted_part(name, setting, root) for name in suite.natural or ()},
        seed,
        batch,
        limit=limit,
        device=setting.device,
    )


def shifted_part(name: str, setting: Setting, root: Path | None) -> Part:
    """A natural-shift set: a data set by name (`cifar10_1`), a file of images and labels, or a folder of classes."""
    from calibrant.data import DATASETS, load
    from calibrant.data.image_folder import read_part
    from calibrant.data.subsets import split_name

    known = name.replace(".", "_") if split_name(name.replace(".", "_"))[0] in DATASETS else name
    if split_name(known)[0] in DATASETS and not Path(name).is_dir():
        data = load(known, root=root, shape=setting.data.shape)
        if data.k != setting.data.k:
            raise InputError(f"{name} has {data.k} classes, {setting.name} has {setting.data.k}: not the same task")
        if tuple(data.shape) != tuple(setting.data.shape):
            raise FileError(f"{name}: images are {data.shape}, the classifier's are {tuple(setting.data.shape)}")
        return data["test"]
    if not Path(name).exists() and not Path(name).suffix:
        raise unknown("natural-shift set (nor a file or folder)", name, DATASETS)
    return read_part(Path(name), _names(setting), setting.data.shape)
