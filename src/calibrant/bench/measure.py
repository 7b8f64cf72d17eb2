"""An experiment at one seed and scale → a cell: train (or resume), choose, pool, calibrate, measure, file.

A cell that is already in the store is returned as it is; a run that was killed goes on where it stood; a run that
failed is filed as failed, with the reason, and tried again when asked again. Every number has the interval of resampled
test items; a claim about a method needs several seeds, which `bench show` puts together.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.bench.features import featured
from calibrant.bench.pooled import checkpoints_wanted, pooled
from calibrant.bench.shifted import on_shifted, shifted_sets
from calibrant.bench.store import KEY_LENGTH, LOGITS, Cell, Store
from calibrant.data import Data
from calibrant.errors import CalibrantError
from calibrant.files import atomic, sealed
from calibrant.files import read as read_predictions
from calibrant.metrics.evaluate import evaluate
from calibrant.papers import AS_TRAINED, Experiment, Scale
from calibrant.posthoc import CONFIDENCES
from calibrant.posthoc.fit import fit
from calibrant.training.environment import device_name, environment
from calibrant.training.epochs import kept_top_logits
from calibrant.training.recipe import Recipe
from calibrant.training.run import PREDICTED, How, data_of, make_fabric, train
from calibrant.training.run_folder import chosen
from calibrant.training.selection import select
from calibrant.training.settings import Choice
from calibrant.types import Estimate, Predictions, Split

LARGEST_EVERY = 25
"""Epochs between those whose largest logits travel."""
ORACLE = "oracle"
"""The variant of the point that a selection would have chosen had it seen test."""

Variants = dict[str, Mapping[str, Estimate]]


def measure(
    experiment: Experiment,
    seed: int,
    scale: Scale,
    store: Store,
    runs: Path,
    how: How = How(),  # noqa: B008
    *,
    overrides: Mapping[str, Any] | None = None,
    data: Data | None = None,
    command: str = "",
) -> Cell:
    """The cell, measured unless it is in the store. `overrides` are settings of the recipe, and part of the key."""
    if overrides:
        experiment = experiment.changed(overrides)
    found = store.find(experiment, seed, scale)
    if found is not None and found.status == "done":
        store.write(found)  # it may have been measured for another row
        return found
    recipe, key = experiment.at(seed, scale), experiment.key(seed, scale)
    if data is None:  # before anything is written: data that is not there is no failed run
        data = data_of(recipe, how)
    sets = shifted_sets(experiment.shifts, how.root, data)
    start = time.perf_counter()
    device = make_fabric(recipe, how).device
    cell = Cell(
        experiment=experiment.name,
        seed=seed,
        scale=experiment.scale_name(scale),
        key=key,
        status="failed",
        settings=experiment.settings(seed, scale),
        reported=experiment.reported,
        note=experiment.remark(scale),
        device=device_name(device),
        environment=(where := {**environment(device), "engine": recipe.engine}),
        commit=where["commit"],
        command=command,
    )
    run = runs / recipe.key()[:KEY_LENGTH]
    ensemble = experiment.pooled(scale)
    how = replace(how, keep_weights=max(how.keep_weights, checkpoints_wanted(ensemble, recipe.epochs)))
    try:
        extras = _train(recipe, run, how, data)
        keep_logits(run, store)
        variants, more = _variants(experiment, ensemble, run, seed, device, data)
        variants |= _shifted(experiment, run, sets, device)
    except CalibrantError as error:
        words = str(error).replace(str(runs), "runs")  # results travel; where the runs lie on this machine does not
        store.write(replace(cell, error=words, seconds=time.perf_counter() - start))
        raise
    seconds = extras.pop("train_seconds")
    done = replace(
        cell,
        status="done",
        measured={name: {m: e.value for m, e in row.items()} for name, row in variants.items()},
        intervals={name: {m: (e.low, e.high) for m, e in row.items()} for name, row in variants.items()},
        seconds=seconds,
        extras={**extras, **more, "run": run.name},
    )
    store.write(done)
    return done


def _train(recipe: Recipe, run: Path, how: How, data: Data) -> dict[str, Any]:
    """One training, or all of a selection. The seconds are of all epochs, those before a resume included."""
    if recipe.selection is None:
        made = train(recipe, run, how, data)
        return {k: made[k] for k in ("train_seconds", "images_per_second", "epochs", "train_accuracy")}
    record = select(recipe, run, how, data)
    each = [sealed.read(run / p["folder"] / "metrics.json") for p in record["points"]]
    choice = {k: record[k] for k in ("criterion", "split", "oracle")}
    choice |= {k: record[k]["settings"] for k in ("chosen", "oracle_choice")}
    return {
        "train_seconds": sum(m["train_seconds"] for m in each),
        "images_per_second": each[-1]["images_per_second"],
        "epochs": sum(m["epochs"] for m in each),
        "selection": {**choice, "points": len(each)},
    }


def _variants(
    experiment: Experiment, ensemble: Choice | None, run: Path, seed: int, device: Any, data: Data
) -> tuple[Variants, dict[str, Any]]:
    """As trained; as an ensemble; the oracle's choice; and each of them after each calibrator."""
    read = partial(featured, device=device, data=data) if CONFIDENCES.keys() & experiment.calibrators else _written
    found: dict[str, tuple[Predictions, Predictions]] = {AS_TRAINED: read(run)}
    if (oracle := chosen(run, which="oracle_choice")) != chosen(run):
        found[ORACLE] = read(oracle)
    extras: dict[str, Any] = {}
    if ensemble is not None:
        parts, said = pooled(ensemble, run, seed, device, data)
        found[ensemble.name] = parts[Split.CALIBRATION], parts[Split.TEST]
        extras |= said
    out: Variants = {}
    for name, (calibration, test) in found.items():
        out[name] = evaluate(test, metrics=experiment.metrics)
        for calibrator in experiment.calibrators:
            fitted = fit(calibrator, calibration)
            variant = calibrator if name == AS_TRAINED else f"{name}+{calibrator}"
            out[variant] = evaluate(fitted.predictions(test), metrics=experiment.metrics)
            if calibrator == "temperature":
                extras["temperature" if name == AS_TRAINED else f"{name}+temperature"] = fitted.summary()["temperature"]
    return out, extras


def _shifted(experiment: Experiment, run: Path, sets: Mapping[str, Data], device: Any) -> Variants:
    """The network, and after each calibrator that was fitted on clean data, on every shifted set."""
    if not sets:
        return {}
    maps = {name: fit(name, _written(run)[0]) for name in experiment.calibrators}
    out: Variants = {}
    for name, said in on_shifted(run, sets, device).items():
        out[name] = evaluate(said, metrics=experiment.metrics)
        for calibrator, fitted in maps.items():
            out[f"{name}+{calibrator}"] = evaluate(fitted.predictions(said), metrics=experiment.metrics)
    return out


def keep_logits(run: Path, store: Store) -> None:
    """Into the store, what travels of a run: its predictions, and what its epochs said of the training items."""
    (store.root / LOGITS).mkdir(parents=True, exist_ok=True)
    for split in PREDICTED:
        file = run / f"{split.value}.npz"
        if file.is_file():
            with atomic.file(store.logits(run.name, split.value)) as temporary:
                shutil.copyfile(file, temporary)
    if kept := kept_top_logits(run):
        epochs, last = sorted(kept), max(kept)
        small = np.uint8 if int(kept[last].labels.max()) < 256 else np.int32
        arrays = {
            "epochs": np.array(epochs),
            "labels": kept[last].labels.numpy().astype(small),
            "predicted": np.stack([kept[e].predicted.numpy().astype(small) for e in epochs]),
            "largest_logit_epochs": np.array([e for e in epochs if e == last or e % LARGEST_EVERY == 0]),
            "largest_logit": np.stack(
                [kept[e].largest_logit.half().numpy() for e in epochs if e == last or e % LARGEST_EVERY == 0]
            ),
        }
        with atomic.file(store.logits(run.name, "epochs")) as temporary:
            np.savez_compressed(temporary, **arrays)  # type: ignore[arg-type]


def _written(run: Path) -> tuple[Predictions, Predictions]:
    return read_predictions(run / "calibration.npz"), read_predictions(run / "test.npz")
