"""What a training's networks say beyond their own test set: as ensembles, under shift, with features.

    FOLDER/NAME-SPLIT.npz     predictions: `dropout-test`, `dropout-calibration`, `cifar10_1-test`, `featured-test`, …;
                              of an ensemble on other items `train+dropout-train`
    FOLDER/shifted-NAME/      logits under corruptions and of foreign items (`shifted`), of the network or an ensemble
    FOLDER/said.json          what is worth recording: sizes and σ, metrics by ensemble size, attacks, videos

Features are for models of confidence (DS Table 4). Networks predict in float32, however they were trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from calibrant.bench import shifted, video
from calibrant.bench.pooled import checkpoints_wanted, pooled, size_curve
from calibrant.bench.store import BOTH
from calibrant.data import Batches, Data, load
from calibrant.ensembles import DeepEnsemble
from calibrant.ensembles.single import predict as predict_with
from calibrant.errors import InputError
from calibrant.files import hashed, read, write
from calibrant.papers import AS_TRAINED, Experiment, Scale
from calibrant.posthoc import CONFIDENCES
from calibrant.training.run_folder import Trained
from calibrant.training.run_folder import load as load_run
from calibrant.training.settings import plain
from calibrant.types import Predictions, Split, jsonable

BATCH = 500
FEATURED = "featured"
RECORD = "said.json"


def wanted(experiment: Experiment, scale: Scale) -> dict[str, Any]:
    """What an experiment asks of each training, as plain JSON; nothing of it where its own predictions are enough."""
    ensembles, epochs = experiment.pooled(scale), experiment.at(0, scale).epochs
    return {
        "ensembles": [plain(e) for e in ensembles],
        "shifts": list(experiment.shifts),
        "features": bool(CONFIDENCES.keys() & {c.name for c in experiment.maps.values()}),
        "checkpoints": max((checkpoints_wanted(e, epochs) for e in ensembles), default=0),
        "block": experiment.block,
    }


def predict(
    experiment: Experiment, seed: int, scale: Scale, run: Path, out: Path, device: torch.device, data: Data, root: Any
) -> None:
    """Everything that the experiment asks for, into the folder `out`; its record is written last."""
    out.mkdir(parents=True, exist_ok=True)
    trained, said = load_run(run), dict[str, Any]()
    members = [m.to(device) for m in trained.members]
    predictors: dict[str, Any] = {AS_TRAINED: members[0] if len(members) == 1 else DeepEnsemble(members)}
    for ensemble in experiment.pooled(scale):
        predictors[ensemble.name], more = pooled(ensemble, run, members, trained, seed, device, data)
        said |= more
    if experiment.block is not None:
        said["video"] = video.measured(experiment, predictors, trained, data, device, scale == "smoke")
    else:
        asked = shifted.Asked.of(experiment.shifts)
        for name, made in predictors.items():
            if name != AS_TRAINED:
                _ensemble(name, made, trained, data, device, out, said)
            if asked.suites:
                shifted.ask(made, asked.suites, trained, data, out / f"shifted-{name}", device, root, scale)
            for attack in asked.attacks:
                key = "+".join([f"attack_{attack}", *([name] if name != AS_TRAINED else [])])
                found = shifted.attacked(made, attack, trained, data, device, scale)
                said.setdefault("attacks", {})[key] = found
        network = members if len(members) > 1 else members[0]
        if wanted(experiment, scale)["features"]:
            for split in BOTH:
                p = _asked(network, data, split, trained, device, features=True, classes=data.classes)
                write(out / f"{FEATURED}-{split.value}.npz", p)
        for name, other in _same_task(asked.datasets, data, root).items():
            split = split_of(name)
            for word, made in predictors.items():
                if word == AS_TRAINED:
                    p = _asked(network, other, split, trained, device)
                else:
                    batches = Batches(other[split], BATCH, device=device, mean=trained.mean, std=trained.std)
                    p = made.predict(batches, split=split, device=device, classes=data.classes, class_axis=-1)
                write(out / f"{elsewhere(name, word)}-{split.value}.npz", p)
    hashed.write(out / RECORD, jsonable(said))


def _ensemble(
    name: str, made: Any, trained: Trained, data: Data, device: torch.device, out: Path, said: dict[str, Any]
) -> None:
    """Its pooled predictions, and of the test set what each further member adds (SS Fig. 3)."""
    calibration, test = (
        Batches(data[split], BATCH, device=device, mean=trained.mean, std=trained.std) for split in BOTH
    )
    options: dict[str, Any] = {"device": device, "classes": data.classes, "class_axis": -1}
    write(out / f"{name}-calibration.npz", made.predict(calibration, split=Split.CALIBRATION, **options))
    p, said["curve"] = size_curve(made, test, data)
    write(out / f"{name}-test.npz", p)


def _asked(
    network: Any, data: Data, split: Split, trained: Trained, device: torch.device, **options: Any
) -> Predictions:
    batches = Batches(data[split], BATCH, device=device, mean=trained.mean, std=trained.std)
    return predict_with(network, batches, device=device, split=split, **options)


def _same_task(names: tuple[str, ...], data: Data, root: Any) -> Mapping[str, Data]:
    sets = {name: data if name == shifted.TRAINING else load(name, root=root) for name in names}
    for name, other in sets.items():
        if other.k != data.k or tuple(other.shape) != tuple(data.shape):
            raise InputError(
                f"{name} has {other.k} classes of images {tuple(other.shape)}, {data.name} has {data.k} of "
                f"{tuple(data.shape)}: not the same task"
            )
    return sets


def split_of(name: str) -> Split:
    """The part that is measured of another data set, or of the network's own."""
    return Split.TRAIN if name == shifted.TRAINING else Split.TEST


def elsewhere(name: str, predictor: str) -> str:
    """What a predictor says of other items: `train`, `train+dropout`."""
    return name if predictor == AS_TRAINED else f"{name}+{predictor}"


def predicted(folder: Path, name: str, split: Split) -> Predictions:
    return read(folder / f"{name}-{split.value}.npz")


def said(folder: Path | None) -> dict[str, Any]:
    return {} if folder is None else hashed.read(folder / RECORD)
