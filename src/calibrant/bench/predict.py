"""What a run's networks say beyond their own test set: as an ensemble, on re-collected data, with features.

    FOLDER/NAME-SPLIT.npz     predictions: `dropout-test`, `dropout-calibration`, `cifar10_1-test`, `featured-test`, …
    FOLDER/said.json          what is worth recording: the size of the ensemble, PEP's σ

An experiment's `shifts` are names of data sets (DS Table 3); features are for models of confidence (DS Table 4).
Networks predict in float32, whatever precision they were trained in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from calibrant.bench.pooled import checkpoints_wanted, pooled
from calibrant.data import DATASETS, Batches, Data, load
from calibrant.data.subsets import split_name
from calibrant.ensembles.single import predict as predict_with
from calibrant.errors import InputError
from calibrant.files import read, sealed, write
from calibrant.papers import Experiment, Scale
from calibrant.posthoc import CONFIDENCES
from calibrant.training.run_folder import load as load_run
from calibrant.training.settings import plain
from calibrant.types import Predictions, Split, jsonable

BATCH = 500
FEATURED = "featured"
RECORD = "said.json"
BOTH = (Split.CALIBRATION, Split.TEST)


def wanted(experiment: Experiment, scale: Scale) -> dict[str, Any]:
    """What an experiment asks of its networks, as plain JSON; nothing of it where their own predictions are enough."""
    ensemble = experiment.pooled(scale)
    return {
        "ensemble": plain(ensemble),
        "shifts": list(experiment.shifts),
        "features": bool(CONFIDENCES.keys() & {c.name for c in experiment.maps.values()}),
        "checkpoints": checkpoints_wanted(ensemble, experiment.at(0, scale).epochs),
    }


def check_shifts(experiment: Experiment) -> None:
    """Refuse what is not a data set, before anything is trained."""
    for name in experiment.shifts:
        if split_name(name)[0] not in DATASETS:
            raise InputError(f"{name} is not a data set; corruptions are measured by `calibrant stress` on the run")


def predict(
    experiment: Experiment, seed: int, scale: Scale, run: Path, out: Path, device: torch.device, data: Data, root: Any
) -> None:
    """Everything that the experiment asks for, into the folder `out`; its record is written last."""
    out.mkdir(parents=True, exist_ok=True)
    asked, said = wanted(experiment, scale), dict[str, Any]()
    found: dict[str, Predictions] = {}
    if (ensemble := experiment.pooled(scale)) is not None:
        parts, said = pooled(ensemble, run, seed, device, data)
        found |= {f"{ensemble.name}-{split.value}": parts[split] for split in BOTH}
    if asked["features"]:
        found |= {f"{FEATURED}-{split.value}": p for split, p in _featured(run, device, data).items()}
    if experiment.shifts:
        found |= {f"{name}-test": p for name, p in _shifted(experiment.shifts, run, device, data, root).items()}
    for name, p in found.items():
        write(out / f"{name}.npz", p)
    sealed.write(out / RECORD, jsonable(said))


def predicted(folder: Path | None, name: str, split: Split) -> Predictions:
    assert folder is not None
    return read(folder / f"{name}-{split.value}.npz")


def said(folder: Path | None) -> dict[str, Any]:
    return {} if folder is None else sealed.read(folder / RECORD)


def _featured(run: Path, device: torch.device, data: Data) -> Mapping[Split, Predictions]:
    trained = load_run(run)
    members = [m.to(device) for m in trained.members]
    model = members if len(members) > 1 else members[0]
    return {
        split: predict_with(
            model,
            Batches(data[split], BATCH, device=device, mean=trained.mean, std=trained.std),
            device=device,
            split=split,
            classes=data.classes,
            features=True,
        )
        for split in BOTH
    }


def _shifted(
    names: tuple[str, ...], run: Path, device: torch.device, data: Data, root: Any
) -> Mapping[str, Predictions]:
    """Each set's test items; members are pooled by whoever reads them."""
    sets = {name: load(name, root=root) for name in names}
    for name, other in sets.items():
        if other.k != data.k or tuple(other.shape) != tuple(data.shape):
            raise InputError(
                f"{name} has {other.k} classes of images {tuple(other.shape)}, {data.name} has {data.k} of "
                f"{tuple(data.shape)}: not the same task"
            )
    trained = load_run(run)
    members = [m.to(device) for m in trained.members]
    model = members if len(members) > 1 else members[0]
    return {
        name: predict_with(
            model,
            Batches(other[Split.TEST], BATCH, device=device, mean=trained.mean, std=trained.std),
            device=device,
            split=Split.TEST,
        )
        for name, other in sets.items()
    }
