"""What one predictor of a training (its network, or an ensemble of it) predicts besides the network's own test set.

    FOLDER/own-SPLIT.npz         an ensemble's predictions of `calibration` and `test`
    FOLDER/featured-SPLIT.npz    the network's predictions with features, for confidence models (DS Table 4)
    FOLDER/DATA-SPLIT.npz        predictions of another data set, or of the training items (`train-train`)
    FOLDER/shifted/              logits under corruptions and of foreign items (`shifted`)
    FOLDER/levels.json           the rank of each test item by adversarial robustness (`robustness`)
    FOLDER/record.json           seconds, ensemble size, σ, metrics by ensemble size, attacks, videos

Rows that ask the same of a network share the folder, whatever else they ask. For a video, one folder holds the network,
its ensembles and the stream. Networks predict in float32, however they were trained.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from calibrant.bench import robustness, shifted, video
from calibrant.bench.ensembles import batches, build_ensemble, checkpoints_wanted, size_curve
from calibrant.bench.store import BOTH
from calibrant.data import Data, load
from calibrant.ensembles import DeepEnsemble
from calibrant.ensembles.prediction import predict as predict_with
from calibrant.errors import InputError
from calibrant.files import hashed, read, write
from calibrant.papers import AS_TRAINED, Experiment, Scale
from calibrant.posthoc import CONFIDENCES
from calibrant.training.run_folder import Trained
from calibrant.training.run_folder import load as load_run
from calibrant.training.settings import Choice, plain
from calibrant.types import Predictions, Split, jsonable

FEATURED, OWN, SHIFTED = "featured", "own", "shifted"
RECORD = "record.json"


def predictors(experiment: Experiment, scale: Scale) -> list[Choice | None]:
    """The network itself (None), and each ensemble of it."""
    return [None] if experiment.block is not None else [None, *experiment.ensembles_at(scale)]


def checkpoints(experiment: Experiment, scale: Scale) -> int:
    """How many epochs' weights the training must keep."""
    epochs = experiment.at(0, scale).epochs
    return max((checkpoints_wanted(e, epochs) for e in experiment.ensembles_at(scale)), default=0)


def wanted(experiment: Experiment, ensemble: Choice | None, scale: Scale) -> dict[str, Any]:
    """What an experiment asks of a predictor, as plain JSON; if nothing is true, the run's own predictions suffice."""
    video_of = experiment.ensembles_at(scale) if experiment.block is not None else ()
    return {
        "ensemble": None if ensemble is None else plain(ensemble),
        "shifts": list(experiment.shifts),
        "features": ensemble is None and bool(CONFIDENCES.keys() & {c.name for c in experiment.maps.values()}),
        "block": experiment.block,
        "video": [plain(e) for e in video_of],
        "levels": robustness.MADE_BY if robustness.LEVELS in experiment.shifts else None,
    }


def predict(
    experiment: Experiment,
    ensemble: Choice | None,
    seed: int,
    scale: Scale,
    run: Path,
    out: Path,
    device: torch.device,
    data: Data,
    root: Any,
) -> None:
    """Write everything that the experiment asks of a predictor into the folder `out`, the record last."""
    start = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    trained, record = load_run(run), dict[str, Any]()
    members = [m.to(device) for m in trained.members]
    made: Any = members[0] if len(members) == 1 else DeepEnsemble(members)
    if experiment.block is not None:
        every = {AS_TRAINED: made}
        for choice in experiment.ensembles_at(scale):
            every[choice.name], more = build_ensemble(choice, run, members, trained, seed, device, data)
            record |= more
        record["video"] = video.measured(experiment, every, trained, data, device, scale == "smoke")
    else:
        if ensemble is not None:
            made, record = build_ensemble(ensemble, run, members, trained, seed, device, data)
            record["curve"] = _predict_ensemble(made, trained, data, device, out)
        asked, network = shifted.Asked.of(experiment.shifts), members if len(members) > 1 else members[0]
        if asked.suites:
            shifted.ask(made, asked.suites, trained, data, out / SHIFTED, device, root, scale)
        if asked.levels and ensemble is None:
            robustness.ask(members, data, run, out, device)
        if asked.attacks:
            record["attacks"] = {a: shifted.attacked(made, a, trained, data, device, scale) for a in asked.attacks}
        if wanted(experiment, ensemble, scale)["features"]:
            for split in BOTH:
                p = _predict(network, data, split, trained, device, features=True, classes=data.classes)
                write(out / f"{FEATURED}-{split.value}.npz", p)
        for name, other in _same_task(asked.datasets, data, root).items():
            split = split_of(name)
            if ensemble is None:
                p = _predict(network, other, split, trained, device)
            else:
                items = batches(other[split], trained, device)
                p = made.predict(items, split=split, device=device, classes=data.classes, class_axis=-1)
            write(out / f"{name}-{split.value}.npz", p)
    hashed.write(out / RECORD, jsonable({**record, "seconds": time.perf_counter() - start}))


def _predict_ensemble(
    made: Any, trained: Trained, data: Data, device: torch.device, out: Path
) -> dict[str, list[float | None]]:
    """Write an ensemble's pooled predictions; return the test metrics of the first 1, 2, … members (SS Fig. 3)."""
    calibration, test = (batches(data[split], trained, device) for split in BOTH)
    options: dict[str, Any] = {"device": device, "classes": data.classes, "class_axis": -1}
    write(out / f"{OWN}-calibration.npz", made.predict(calibration, split=Split.CALIBRATION, **options))
    p, curve = size_curve(made, test, data)
    write(out / f"{OWN}-test.npz", p)
    return curve


def _predict(
    network: Any, data: Data, split: Split, trained: Trained, device: torch.device, **options: Any
) -> Predictions:
    return predict_with(network, batches(data[split], trained, device), device=device, split=split, **options)


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
    """The split that is measured: of the training items, `train`; of any other data set, `test`."""
    return Split.TRAIN if name == shifted.TRAINING else Split.TEST


def predicted(folder: Path, name: str, split: Split) -> Predictions:
    return read(folder / f"{name}-{split.value}.npz")


def read_record(folder: Path) -> dict[str, Any]:
    return hashed.read(folder / RECORD)
