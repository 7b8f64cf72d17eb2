"""What `calibrant stress` works on, from its options: the model, its data, the shifted sets, the calibrators' data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from calibrant.cli.ensemble_options import Ensembling
from calibrant.cli.model_data import Inputs, Setting, is_arrays, opened_model
from calibrant.cli.options import separated
from calibrant.errors import FileError, InputError, unknown

if TYPE_CHECKING:
    from calibrant.data import Data, Part
    from calibrant.diagnostics.stress import Choice, Material, Subject


@dataclass(frozen=True)
class Suite:
    """Which shifts."""

    suite: Annotated[
        str, typer.Option(help="corruptions, perturbations, ood, frequency, natural (separated by commas), or all")
    ] = "corruptions"
    subset: Annotated[str, typer.Option(help="the 15, 17 or 19 types of the papers")] = "19"
    types: Annotated[str | None, typer.Option(help="corruptions by name, separated by commas")] = None
    severities: Annotated[str, typer.Option(help="1 … 5, separated by commas")] = "1,2,3,4,5"
    corruptions: Annotated[
        Path | None,
        typer.Option(help="use these files: TYPE.npy and labels.npy (CIFAR-10-C), or TYPE/SEVERITY/CLASS/*.jpg"),
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
        """What was asked for, checked by name before anything is loaded."""
        from calibrant.diagnostics.stress import Choice
        from calibrant.diagnostics.stress.cells import chosen_suites
        from calibrant.shifts import PERTURBATIONS, SHIFTS, SUBSETS
        from calibrant.shifts.frequency import FREQUENCIES

        suites, natural = chosen_suites(self.suite), tuple(self.natural or ())
        if natural and "natural" not in suites:
            suites = (*suites, "natural")
        if suites == ("natural",) and not natural:
            raise InputError("--suite natural needs a set: --natural NAME, FILE.npz or FOLDER")
        if self.subset not in SUBSETS:
            raise unknown("subset of corruptions", self.subset, SUBSETS)
        types = SUBSETS[self.subset] if self.types is None else tuple(separated(self.types))
        if not types:
            raise InputError("--types is empty; pass names of corruptions, separated by commas, or leave it out")
        for name in types if self.corruptions is None else ():
            if name not in SHIFTS:
                raise unknown("corruption", name, SHIFTS)
        if self.types is None and self.corruptions is not None:
            types = ()  # those of the files
        sequences = tuple(PERTURBATIONS)[:10]
        return Choice(suites, types, levels(self.severities), sequences, len(FREQUENCIES), natural=natural)


@dataclass(frozen=True)
class Ensembled:
    """The options that make an ensemble, as in `calibrant predict`."""

    name: str | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    fit_on: str = "calibration"

    def plain(self) -> dict[str, Any] | None:
        return None if self.name is None else vars(self)


def ensembled(name: str | None, given: Ensembling, seed: int, fit_on: str) -> Ensembled:
    """The options as they belong together; one that would change nothing is refused, as in `calibrant predict`."""
    if name == "temporal":
        raise InputError(
            "--ensemble temporal averages the frames of a stream, and test items are not a stream; drop it"
        )
    return Ensembled(name, given.of(name), seed, fit_on)


def opened(models: Sequence[str], data: str | None, inputs: Inputs, device: str) -> Setting:
    """The model and its data; a file that lacks the last classes has as many as the network."""
    from calibrant.data.corruption_folder import type_folders
    from calibrant.diagnostics.stress import Subject
    from calibrant.files.paths import visible

    if data is not None and Path(data).is_dir() and (visible(data, "*.npy") or type_folders(Path(data))):
        raise InputError(f"--data {data} holds corruptions, not a data set; pass --corruptions {data}")
    found = opened_model(models, data, inputs, device)
    if not is_arrays(found.name) or found.first.classes is not None:
        return found
    subject = Subject(found.networks[0], found.mean, found.std, device=found.device)
    return replace(found, data=_all_classes(found.data, subject, found.first.name, found.name))


def _all_classes(loaded: Data, subject: Subject, model: str, name: str) -> Data:
    """As many classes as the network has, if they have no names: a small file may lack the last ones."""
    from calibrant.data.records import numbered_classes
    from calibrant.diagnostics.stress import Material
    from calibrant.diagnostics.stress.run import tried

    k = tried(subject, Material(loaded["test"], loaded.shape, device=subject.device), model, name)
    return replace(loaded, classes=numbered_classes(k)) if k > loaded.k else loaded


def _names(setting: Setting) -> tuple[str, ...]:
    """What the classes are called: by the model where it knows, else by its data."""
    return setting.first.classes or setting.data.classes


def subject_of(setting: Setting, made: Ensembled, batch: int) -> Subject:
    """The predictor: one network, several pooled, or the ensemble that is asked for."""
    from calibrant.cli.predict import assembled
    from calibrant.diagnostics.stress import Subject
    from calibrant.ensembles.deep import DeepEnsemble

    predictor: Any = setting.networks[0]
    if made.name is not None:
        given = {**made.given, "seed": made.seed}
        predictor = assembled(
            made.name, setting.networks, setting.first.name, given, setting.batches(batch), made.fit_on
        )
    elif len(setting.networks) > 1:
        predictor = DeepEnsemble(setting.networks)
    return Subject(predictor, setting.mean, setting.std, device=setting.device)


def levels(text: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise InputError(f"--severities {text!r} is not whole numbers separated by commas, e.g. 1,3,5") from None
    if not found or found[0] < 1 or found[-1] > 5:
        raise InputError(f"--severities {text!r}: severities lie in 1 … 5")
    return found


def material_of(
    setting: Setting,
    corruptions: Path | None,
    choice: Choice,
    split: str,
    calibration: str | None,
    *,
    root: Path | None,
    limit: int | None,
    seed: int,
    batch: int,
) -> Material:
    """The images of all cells, and the calibration items (None: no calibrators)."""
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
        None if corruptions is None else corruption_folder(corruptions, _names(setting), tuple(shape)),
        lambda name: ood_images(name, shape, n=limit or part.n, root=root, seed=seed),
        {name: shifted_part(name, setting, root) for name in choice.natural},
        seed,
        batch,
        limit=limit,
        device=setting.device,
    )


def shifted_part(name: str, setting: Setting, root: Path | None) -> Part:
    """A natural-shift set: a data set's name (`cifar10_1`), a file of images and labels, or a folder of classes."""
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
