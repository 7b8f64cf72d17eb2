"""An experiment at one seed and scale → a cell: train (or resume), calibrate, measure, file.

A cell that is already in the store is returned as it is; a run that was killed goes on where it stood; a run that
failed is filed as failed, with the reason, and tried again when asked again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from calibrant.bench.store import KEY_LENGTH, Cell, Store
from calibrant.data import Data
from calibrant.errors import CalibrantError, InputError
from calibrant.files import read as read_predictions
from calibrant.papers import AS_TRAINED, Experiment, Scale
from calibrant.posthoc.fit import fit
from calibrant.train.environment import device_name, environment
from calibrant.train.evaluate import summary
from calibrant.train.run import How, make_fabric, train
from calibrant.types import Predictions


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
    if experiment.recipe.selection is not None or experiment.ensemble is not None or experiment.shifts:
        raise InputError(f"{experiment.name}: this version measures single runs without ensembles or shifts")
    if overrides:
        experiment = replace(experiment, recipe=experiment.recipe.with_settings(overrides))
    found = store.find(experiment, seed, scale)
    if found is not None and found.status == "done":
        return found
    recipe, key = experiment.at(seed, scale), experiment.key(seed, scale)
    start = time.perf_counter()
    device = make_fabric(recipe, how).device
    cell = Cell(
        experiment=experiment.name,
        seed=seed,
        scale=scale,
        key=key,
        status="failed",
        settings=experiment.settings(seed, scale),
        reported=experiment.reported,
        note=experiment.note,
        device=device_name(device),
        environment=(where := environment(device)),
        commit=where["commit"],
        command=command or f"calibrant bench run {experiment.name} --seeds {seed + 1} --scale {scale}",
    )
    run = runs / key[:KEY_LENGTH]
    try:
        made = train(recipe, run, how, data)
        test = read_predictions(run / "test.npz")
        measured, extras = variants(experiment, read_predictions(run / "calibration.npz"), test)
    except CalibrantError as error:
        words = str(error).replace(str(runs), "runs")  # results travel; where the runs lie on this machine does not
        store.write(experiment, replace(cell, error=words, seconds=time.perf_counter() - start))
        raise
    # of a resumed run the seconds are those of all its epochs, not of the last attempt
    seconds = made["train_seconds"]
    speed = {"images_per_second": made["images_per_second"], "epochs": made["epochs"]}
    done = replace(cell, status="done", measured=measured, seconds=seconds, extras={**speed, **extras})
    store.write(experiment, done, test)
    return done


def variants(
    experiment: Experiment, calibration: Predictions, test: Predictions
) -> tuple[dict[str, dict[str, float | None]], dict[str, Any]]:
    """The network as trained, and after each calibrator fitted on the calibration split."""
    measured = {AS_TRAINED: summary(test, experiment.metrics)}
    extras: dict[str, Any] = {}
    for name in experiment.calibrators:
        fitted = fit(name, calibration)
        measured[name] = summary(fitted.predictions(test), experiment.metrics)
        if name == "temperature":
            extras["temperature"] = fitted.summary()["temperature"]
    return measured, extras
