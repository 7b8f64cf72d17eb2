"""Turn predictions into a cell: every variant of a network, as it is and after each calibrator, with intervals.

The intervals resample the test items of one run. A claim about a method needs several seeds, which `bench show`
combines. Nothing here needs a network or an accelerator.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from calibrant.bench import robustness, shifted
from calibrant.bench.ensembles import curve
from calibrant.bench.predict import FEATURED, OWN, SHIFTED, predicted, read_record, split_of
from calibrant.bench.store import BOTH, LOGITS, Cell, Store
from calibrant.bench.train import PARALLEL
from calibrant.diagnostics.stability import variance_over_runs
from calibrant.files import atomic, hashed
from calibrant.files import read as read_predictions
from calibrant.metrics.evaluate import evaluate
from calibrant.papers import AS_TRAINED, Experiment, Scale
from calibrant.posthoc import CONFIDENCES
from calibrant.posthoc.fit import resolve
from calibrant.training.epochs import kept_top_logits
from calibrant.training.recipe import Recipe
from calibrant.training.run import PREDICTED
from calibrant.training.run_folder import chosen
from calibrant.types import Estimate, Predictions, Split

LARGEST_EVERY = 25
"""The largest logits of every 25th epoch go into the store."""
ORACLE = "oracle"
"""The variant of the settings that a selection would have chosen on test."""

OF_TRAINING = ("images_per_second", "epochs", "train_accuracy")

Variants = dict[str, Mapping[str, Estimate]]
Folders = Mapping[str, Sequence[Path]]
"""Predictor → the folders of its predict steps, one per run."""
Both = tuple[Predictions, Predictions]
"""The predictions of the calibration split and of the test split."""


def blank(experiment: Experiment, seed: int, scale: Scale, command: str) -> Cell:
    """A cell with its settings and no numbers."""
    return Cell(
        experiment=experiment.name,
        seed=seed,
        scale=experiment.scale_name(scale),
        key=experiment.key(seed, scale),
        status="failed",
        settings=experiment.settings(seed, scale),
        note=experiment.remark(scale),
        command=command,
    )


def measured(
    experiment: Experiment,
    seed: int,
    scale: Scale,
    runs: Sequence[Path],
    folders: Folders,
    store: Store,
    command: str,
    reference: Path | None = None,
) -> Cell:
    """The cell of one finished training, or of the pool of several, with the output of its predict steps.

    The logits of the trainings go into the store. `reference` is the folder of the reference network's predictions."""
    if experiment.published is None:  # published predictions are not copied
        for run in runs:
            keep_logits(run, store)
    run = runs[0]
    each = [
        _trained(experiment.at(s, scale), run) for s, run in zip(experiment.seeds_of(seed, scale), runs, strict=True)
    ]
    extras = {**each[0], "train_seconds": sum(e["train_seconds"] for e in each)}
    if (run / PARALLEL).is_file():
        extras |= hashed.read(run / PARALLEL)
    records = {name: read_record(each[0]) for name, each in folders.items() if len(runs) == 1}
    if experiment.block is not None:
        variants, more = _video(records[AS_TRAINED].pop("video")), dict[str, Any]()
    else:
        variants, more = _variants(experiment, *_predictors(experiment, scale, runs, folders), folders, reference)
    if records:
        more["predict_seconds"] = sum(record.pop("seconds", 0.0) for record in records.values())
    for name, record in records.items():
        for attack, row in record.pop("attacks", {}).items():
            variants[_variant_name(f"attack_{attack}", name)] = {m: Estimate(v) for m, v in row.items()}
        more |= record
    environment = {
        k: v for k, v in hashed.read(chosen(run) / "environment.json").items() if k not in ("command", "processes")
    }
    engine = hashed.read(chosen(run) / "metrics.json").get("engine")  # missing in runs from before `auto`
    return replace(
        blank(experiment, seed, scale, command),
        status="done",
        **_numbers(variants),
        seconds=extras.pop("train_seconds"),
        device=environment["device"],
        environment={**environment, "engine": engine or hashed.read(chosen(run) / "recipe.json")["engine"]},
        commit=environment["commit"],
        extras={**extras, **more, "run": run.name} | ({"runs": [r.name for r in runs]} if len(runs) > 1 else {}),
    )


def measured_from_logits(
    experiment: Experiment, seed: int, scale: Scale, known: Cell, store: Store, command: str
) -> Cell:
    """A further cell of a training whose logits are in the store; `known` is another cell of the same training."""
    calibration, test = (read_predictions(store.logits(known.extras["run"], s.value)) for s in BOTH)
    variants, more = _variants(experiment, {AS_TRAINED: (calibration, test)}, {})
    own = {k: v for k, v in known.extras.items() if k in (*OF_TRAINING, "parallel", "run")}
    return replace(
        blank(experiment, seed, scale, command),
        status="done",
        **_numbers(variants),
        seconds=known.seconds,
        device=known.device,
        environment=known.environment,
        commit=known.commit,
        extras={**own, **more},
    )


def _numbers(variants: Variants) -> dict[str, Any]:
    bounds = {name: {m: (e.low, e.high) for m, e in row.items() if e.low is not None} for name, row in variants.items()}
    return {
        "measured": {name: {m: e.value for m, e in row.items()} for name, row in variants.items()},
        "intervals": bounds,
    }


def _video(rows: Mapping[str, Any]) -> Variants:
    return {name: {m: Estimate(v, low, high) for m, (v, low, high) in row.items()} for name, row in rows.items()}


def _trained(recipe: Recipe, run: Path) -> dict[str, Any]:
    """What the training recorded. Its seconds include the epochs before it was resumed."""
    if recipe.selection is None:
        made = hashed.read(run / "metrics.json")
        return {k: made[k] for k in ("train_seconds", *OF_TRAINING, "weights_sha256") if k in made}
    record = hashed.read(run / "selection.json")
    each = [hashed.read(run / p["folder"] / "metrics.json") for p in record["points"]]
    choice = {k: record[k] for k in ("criterion", "split", "oracle")}
    choice |= {k: record[k]["settings"] for k in ("chosen", "oracle_choice")}
    return {
        "train_seconds": sum(m["train_seconds"] for m in each),
        "images_per_second": each[-1]["images_per_second"],
        "epochs": sum(m["epochs"] for m in each),
        "selection": {**choice, "points": len(each)},
    }


def _predictors(
    experiment: Experiment, scale: Scale, runs: Sequence[Path], folders: Folders
) -> tuple[dict[str, Both], dict[str, Any]]:
    """Every predictor of the cell (as trained, each ensemble, the oracle's choice), and what a pool adds to extras."""
    if len(runs) > 1:
        return _pool(runs)
    (run,), extras = runs, dict[str, Any]()
    found = {AS_TRAINED: _written(run)}
    if len(each := _members(found[AS_TRAINED][1])) > 1:
        extras["curve"] = _pool_members(each)[1]
    if CONFIDENCES.keys() & {c.name for c in experiment.maps.values()}:
        found[AS_TRAINED] = _ensemble_predictions(folders[AS_TRAINED][0], FEATURED)
    if (oracle := chosen(run, which="oracle_choice")) != chosen(run):
        found[ORACLE] = _written(oracle)
    return found | {
        e.name: _ensemble_predictions(folders[e.name][0], OWN) for e in experiment.ensembles_at(scale)
    }, extras


def _pool(runs: Sequence[Path]) -> tuple[dict[str, Both], dict[str, Any]]:
    each = [_written(run) for run in runs]
    calibration, (test, curve) = _pool_members([c for c, _ in each])[0], _pool_members([t for _, t in each])
    logits = torch.stack([t.logits for _, t in each if t.logits is not None])
    variance = float(variance_over_runs(logits, test.labels).mean())
    return {AS_TRAINED: (calibration, test)}, {"curve": curve, "variance": variance}


def _members(p: Predictions) -> list[Predictions]:
    """The predictions of each network of a run."""
    assert p.logits is not None
    return [p] if p.logits.ndim == 2 else [replace(p, logits=z) for z in p.logits]


def _pool_members(each: Sequence[Predictions]) -> tuple[Predictions, dict[str, list[float | None]]]:
    """The pooled predictions of several networks, and the metrics of the first 1, 2, … of them."""
    about = {"split": each[0].split, "classes": each[0].classes, "ids": each[0].ids, "raw": False}
    return curve((p.logits for p in each if p.logits is not None), each[0].labels, about)


def _variants(
    experiment: Experiment,
    found: Mapping[str, Both],
    extras: dict[str, Any],
    folders: Folders | None = None,
    reference: Path | None = None,
) -> tuple[Variants, dict[str, Any]]:
    """Measure every predictor as it is and after each calibrator, on clean data and under every shift.

    Returns the variants, and `extras` with more numbers."""
    shifts, clean, moved = shifted.Shifts.of(experiment.shifts), Variants(), Variants()
    for name, (calibration, test) in found.items():
        predictions = (folders or {}).get(name, ())
        # without the guard of `calibrant.fit`, which fits five times more and changes no number of a cell
        maps = {c: resolve(m.name, dict(m.options)).fit(calibration) for c, m in experiment.maps.items()}
        cells, members = shifted.read([f / SHIFTED for f in predictions]) if shifts.suites and predictions else ({}, {})
        for calibrator, map_ in {"": None, **maps}.items():
            own = _variant_name(name, calibrator)
            mapped = (lambda p: p) if map_ is None else map_.predictions
            items = {AS_TRAINED: mapped(test)}
            if predictions:
                items |= {d: mapped(predicted(predictions[0], d, split_of(d))) for d in shifts.datasets}
            if shifts.levels and name == AS_TRAINED:
                items |= robustness.parts(predictions[0], items[AS_TRAINED])
            metrics = {shift: evaluate(p, metrics=experiment.metrics) for shift, p in items.items()}
            clean[own] = metrics.pop(AS_TRAINED)
            moved |= {_variant_name(shift, own): row for shift, row in metrics.items()}
            if map_ and experiment.maps[calibrator].name == "temperature":
                extras[own] = map_.summary()["temperature"]
            if cells:
                raw = test.raw and len(_members(test)) == 1
                rows, more = shifted.rows(cells, raw=raw, fitted=map_, against=reference)
                clean[own] = {**clean[own], **rows.pop(shifted.HELD_OUT, {})}
                moved |= {_variant_name(shift, own): row for shift, row in rows.items()}
                extras |= {key if name == AS_TRAINED else f"{key}_{name}": value for key, value in more.items()}
        for shift, row in shifted.variances(members, cells).items():
            moved[shift] = {**moved[shift], **{m: Estimate(v) for m, v in row.items()}}
    if (variance := extras.pop("variance", None)) is not None:
        clean[AS_TRAINED] = {**clean[AS_TRAINED], "variance": Estimate(variance)}
    return clean | moved, extras


def _variant_name(*words: str) -> str:
    """The words joined, as in `corruptions+pep+temperature`; `as_trained` is left out unless it is alone."""
    return "+".join(w for w in words if w not in ("", AS_TRAINED)) or AS_TRAINED


def keep_logits(run: Path, store: Store) -> None:
    """Copy the predictions of a run into the store, and what each epoch predicted of the training items."""
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


def _written(run: Path) -> Both:
    return read_predictions(run / "calibration.npz"), read_predictions(run / "test.npz")


def _ensemble_predictions(folder: Path, name: str) -> Both:
    return predicted(folder, name, Split.CALIBRATION), predicted(folder, name, Split.TEST)
