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

from calibrant.bench import robustness, shifted, video
from calibrant.bench.ensembles import Loaded, build_ensemble, checkpoints_wanted, size_curve
from calibrant.bench.store import BOTH
from calibrant.data import Data, Part, load
from calibrant.ensembles import DeepEnsemble
from calibrant.ensembles.prediction import predict as predict_with
from calibrant.errors import InputError
from calibrant.files import hashed, read, write
from calibrant.papers import AS_TRAINED, Experiment, Scale
from calibrant.posthoc import CONFIDENCES
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


def request(experiment: Experiment, ensemble: Choice | None, scale: Scale) -> dict[str, Any]:
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
    experiment: Experiment, ensemble: Choice | None, scale: Scale, loaded: Loaded, out: Path, root: str | Path | None
) -> None:
    """Write everything that the experiment asks of a predictor into the folder `out`, the record last."""
    start = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    if experiment.block is not None:
        record = _predict_video(experiment, scale, loaded)
    else:
        record = _predict_items(experiment, ensemble, scale, loaded, out, root)
    hashed.write(out / RECORD, jsonable({**record, "seconds": time.perf_counter() - start}))


def _predict_video(experiment: Experiment, scale: Scale, loaded: Loaded) -> dict[str, Any]:
    """What to record of a video: the metrics of the network, its ensembles and the stream."""
    every, record = {AS_TRAINED: _network(loaded)}, dict[str, Any]()
    for choice in experiment.ensembles_at(scale):
        every[choice.name], more = build_ensemble(choice, loaded)
        record |= more
    return {**record, "video": video.measured(experiment, every, loaded, scale == "smoke")}


def _predict_items(
    experiment: Experiment, ensemble: Choice | None, scale: Scale, loaded: Loaded, out: Path, root: str | Path | None
) -> dict[str, Any]:
    """Write the predictions of items, clean and shifted; return what to record of them."""
    made, record = _network(loaded), dict[str, Any]()
    if ensemble is not None:
        made, record = build_ensemble(ensemble, loaded)
        record["curve"] = _predict_ensemble(made, loaded, out)
    shifts, data = shifted.Shifts.of(experiment.shifts), loaded.data
    if shifts.suites:
        shifted.predict_cells(made, shifts.suites, loaded, out / SHIFTED, root, scale)
    if shifts.levels and ensemble is None:
        robustness.rank_items(loaded, out)
    if shifts.attacks:
        record["attacks"] = {name: shifted.measure_attack(made, name, loaded, scale) for name in shifts.attacks}
    if request(experiment, ensemble, scale)["features"]:
        for split in BOTH:
            p = _predict(loaded, data[split], split, features=True, classes=data.classes)
            write(out / f"{FEATURED}-{split.value}.npz", p)
    for name, other in _same_task(shifts.datasets, data, root).items():
        split = split_of(name)
        if ensemble is None:
            p = _predict(loaded, other[split], split)
        else:
            options: dict[str, Any] = {"device": loaded.device, "classes": data.classes, "class_axis": -1}
            p = made.predict(loaded.batches(other[split]), split=split, **options)
        write(out / f"{name}-{split.value}.npz", p)
    return record


def _network(loaded: Loaded) -> Any:
    """The network of a training; several members are a deep ensemble."""
    members = loaded.members
    return members[0] if len(members) == 1 else DeepEnsemble(members)


def _predict_ensemble(made: Any, loaded: Loaded, out: Path) -> dict[str, list[float | None]]:
    """Write an ensemble's pooled predictions; return the test metrics of the first 1, 2, … members (SS Fig. 3)."""
    options: dict[str, Any] = {"device": loaded.device, "classes": loaded.data.classes, "class_axis": -1}
    calibration = made.predict(loaded.batches(Split.CALIBRATION), split=Split.CALIBRATION, **options)
    write(out / f"{OWN}-calibration.npz", calibration)
    p, curve = size_curve(made, loaded)
    write(out / f"{OWN}-test.npz", p)
    return curve


def _predict(loaded: Loaded, part: Part, split: Split, **options: Any) -> Predictions:
    members = loaded.members
    network: Any = members[0] if len(members) == 1 else members
    return predict_with(network, loaded.batches(part), device=loaded.device, split=split, **options)


def _same_task(names: tuple[str, ...], data: Data, root: str | Path | None) -> Mapping[str, Data]:
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
