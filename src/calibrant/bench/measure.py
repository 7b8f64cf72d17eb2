"""Predictions → a cell: every variant of a network, each after each calibrator, every number with its interval.

The intervals resample the test items of one run; a claim about a method needs several seeds, which `bench show` puts
together. Nothing here needs a network or an accelerator.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.bench.predict import FEATURED, predicted, said, wanted
from calibrant.bench.store import LOGITS, Cell, Store
from calibrant.files import atomic, sealed
from calibrant.files import read as read_predictions
from calibrant.metrics.evaluate import evaluate
from calibrant.papers import AS_TRAINED, Experiment, Scale
from calibrant.posthoc.fit import fit
from calibrant.training.epochs import kept_top_logits
from calibrant.training.recipe import Recipe
from calibrant.training.run import PREDICTED
from calibrant.training.run_folder import chosen
from calibrant.types import Estimate, Predictions, Split

LARGEST_EVERY = 25
"""Epochs between those whose largest logits travel."""
ORACLE = "oracle"
"""The variant of the point that a selection would have chosen had it seen test."""

Variants = dict[str, Mapping[str, Estimate]]


def blank(experiment: Experiment, seed: int, scale: Scale, command: str) -> Cell:
    """A cell before anything is known of it but its settings."""
    return Cell(
        experiment=experiment.name,
        seed=seed,
        scale=experiment.scale_name(scale),
        key=experiment.key(seed, scale),
        status="failed",
        settings=experiment.settings(seed, scale),
        reported=experiment.reported,
        note=experiment.remark(scale),
        command=command,
    )


def measured(
    experiment: Experiment, seed: int, scale: Scale, run: Path, predictions: Path | None, store: Store, command: str
) -> Cell:
    """The cell of a finished training, with what a predict step left; its logits go into the store."""
    recipe = experiment.at(seed, scale)
    keep_logits(run, store)
    extras = _trained(recipe, run)
    variants, more = _variants(experiment, scale, run, predictions)
    variants |= _shifted(experiment, run, predictions)
    where = {
        k: v for k, v in sealed.read(chosen(run) / "environment.json").items() if k not in ("command", "processes")
    }
    engine = sealed.read(chosen(run) / "metrics.json").get("engine")  # runs before `auto` do not say
    return replace(
        blank(experiment, seed, scale, command),
        status="done",
        measured={name: {m: e.value for m, e in row.items()} for name, row in variants.items()},
        intervals={name: {m: (e.low, e.high) for m, e in row.items()} for name, row in variants.items()},
        seconds=extras.pop("train_seconds"),
        device=where["device"],
        environment={**where, "engine": engine or sealed.read(chosen(run) / "recipe.json")["engine"]},
        commit=where["commit"],
        extras={**extras, **said(predictions), **more, "run": run.name},
    )


def _trained(recipe: Recipe, run: Path) -> dict[str, Any]:
    """What the training said of itself. The seconds are of all epochs, those before a resume included."""
    if recipe.selection is None:
        made = sealed.read(run / "metrics.json")
        return {k: made[k] for k in ("train_seconds", "images_per_second", "epochs", "train_accuracy")}
    record = sealed.read(run / "selection.json")
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
    experiment: Experiment, scale: Scale, run: Path, predictions: Path | None
) -> tuple[Variants, dict[str, Any]]:
    """As trained; as an ensemble; the oracle's choice; and each of them after each calibrator."""
    both = (Split.CALIBRATION, Split.TEST)
    found = {AS_TRAINED: _written(run)}
    if wanted(experiment, scale)["features"]:
        found[AS_TRAINED] = tuple(predicted(predictions, FEATURED, s) for s in both)  # type: ignore[assignment]
    if (oracle := chosen(run, which="oracle_choice")) != chosen(run):
        found[ORACLE] = _written(oracle)
    if (ensemble := experiment.pooled(scale)) is not None:
        found[ensemble.name] = tuple(predicted(predictions, ensemble.name, s) for s in both)  # type: ignore[assignment]
    out: Variants = {}
    extras: dict[str, Any] = {}
    for name, (calibration, test) in found.items():
        out[name] = evaluate(test, metrics=experiment.metrics)
        for calibrator, choice in experiment.maps.items():
            fitted = fit(choice.name, calibration, **choice.options)
            variant = calibrator if name == AS_TRAINED else f"{name}+{calibrator}"
            out[variant] = evaluate(fitted.predictions(test), metrics=experiment.metrics)
            if choice.name == "temperature":
                extras[variant] = fitted.summary()["temperature"]
    return out, extras


def _shifted(experiment: Experiment, run: Path, predictions: Path | None) -> Variants:
    """The network, and after each calibrator that was fitted on clean data, on every shifted set."""
    if not experiment.shifts:
        return {}
    maps = {v: fit(c.name, _written(run)[0], **c.options) for v, c in experiment.maps.items()}
    out: Variants = {}
    for name in experiment.shifts:
        there = predicted(predictions, name, Split.TEST)
        out[name] = evaluate(there, metrics=experiment.metrics)
        for calibrator, fitted in maps.items():
            out[f"{name}+{calibrator}"] = evaluate(fitted.predictions(there), metrics=experiment.metrics)
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
