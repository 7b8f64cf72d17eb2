"""What a finished run of `ar_runs` does on the clean test images, under the 19 × 5 corruptions and on CIFAR-100.

    RUN/measured-….json     variant → metric → value: as_trained, corruptions, intensity_S, type_T, cifar100, and all of
                            them once more after temperature scaling fitted on the clean calibration part
    RUN/shifted-….npy       logits [sets, N, K] (members pooled), RUN/cifar100.npy: for pools and variances of runs

Corrupted images are made once a process and stay on the device. A pool of runs is judged in the same way from the
logits of its runs, with their variance (AR §3.1) beside it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.ar_units import Unit, sets
from calibrant import files
from calibrant.data import Data, load
from calibrant.data.batches import Batches
from calibrant.data.records import Part
from calibrant.diagnostics.stability import variance_over_runs
from calibrant.errors import FileError
from calibrant.files import atomic
from calibrant.functional.inputs import predictions
from calibrant.functional.pooling import entropy, pool
from calibrant.functional.scores import reduce
from calibrant.metrics.evaluate import evaluate, evaluate_scores
from calibrant.metrics.ood import ood
from calibrant.papers import AS_TRAINED, experiments
from calibrant.papers.ar import CORRUPTIONS, OOD
from calibrant.posthoc.fit import fit
from calibrant.training.run_folder import load as load_run
from calibrant.types import Estimate, Predictions, Split, jsonable

BATCH = 2_500
SHIFT_METRICS = ("accuracy", "ece", "nll", "auroc")
ENTROPY_BINS = 20
TEMPERATURE = "temperature"
READINGS = {"variance": "true", "variance_of_all_classes": "classes", "variance_of_confidence": "confidence"}
"""AR does not say of which class p̂ is."""

Row = Mapping[str, Any]
Images = dict[str, Tensor]


def measure(unit: Unit, data: Data, a: argparse.Namespace) -> None:
    """One run: its logits wherever we look, and what they say."""
    part = shifted_part(data, a)
    device = torch.device(a.device)
    networks = loaded(unit, device)
    moved = corrupted(part, a, device)
    rows = [logits_of(networks, x, part, data, unit, device) for x in moved.values()]
    logits = torch.stack(rows) if rows else None
    if logits is not None:
        save(unit.run / shifted_file(unit), logits)
    foreign = outside(data, a)
    far = None if foreign is None else logits_of(networks, foreign.x.to(device), foreign, data, unit, device)
    if far is not None:
        save(unit.run / f"{OOD}.npy", far)
    test, calibration = read(unit.run, "test"), read(unit.run, "calibration")
    _write(unit.path, judged(test, calibration, logits, list(moved), far))


def measure_pool(unit: Unit, a: argparse.Namespace) -> None:
    """Several runs: their pool as one predictor, and how much they differ."""
    names = [file for file, _, _ in sets(a)]
    each = [held(run / shifted_file(unit)) for run in unit.pooled]
    far = [held(run / f"{OOD}.npy") for run in unit.pooled]
    test, calibration = (joined([read(run, n) for run in unit.pooled]) for n in ("test", "calibration"))
    logits = [] if not names else [pool(torch.stack([z[i] for z in each])) for i in range(len(names))]  # type: ignore[index]
    outer = None if any(z is None for z in far) else pool(torch.stack([z for z in far if z is not None]))
    record = judged(test, calibration, torch.stack(logits) if logits else None, names, outer)
    clean = torch.stack([read(run, "test").logits.double() for run in unit.pooled])  # type: ignore[union-attr]
    record["variance"] = {AS_TRAINED: spread(clean, test.labels)}
    if names:
        n = each[0].shape[1]  # type: ignore[union-attr]
        rows = [spread(torch.stack([z[i] for z in each]), test.labels[:n]) for i in range(len(names))]  # type: ignore[index]
        record["variance"] |= grouped(names, rows)
    _write(unit.path, record)


# -- logits ----------------------------------------------------------------------------------------------------------


def shifted_part(data: Data, a: argparse.Namespace) -> Part:
    """The test items that are corrupted: the first so many."""
    part = data[Split.TEST]
    items = part.n if a.shift_items is None else min(a.shift_items, part.n)
    return part.take(torch.arange(items), Split.TEST)


_made: dict[tuple[Any, ...], Images] = {}


def corrupted(part: Part, a: argparse.Namespace, device: torch.device) -> Images:
    """Every corrupted set by its name, on the device; made once a process."""
    from calibrant.shifts import corrupt

    key = (part.n, tuple(sets(a)), str(device))
    if key not in _made:
        images = part.x.to(device)
        _made[key] = {
            file: torch.cat([corrupt(images[i : i + BATCH], name, s, 0, index=i) for i in range(0, part.n, BATCH)])
            for file, name, s in sets(a)
        }
    return _made[key]


@cache
def _foreign(root: Path | None) -> Part | None:
    try:
        return load(OOD, root=root)[Split.TEST]
    except FileError:
        return None


def outside(data: Data, a: argparse.Namespace) -> Part | None:
    """CIFAR-100's test images, where they lie and CIFAR-10's were trained on."""
    return _foreign(a.data_root) if data.name == "cifar10" else None


def loaded(unit: Unit, device: torch.device) -> list[torch.nn.Module]:
    form = torch.channels_last if unit.recipe.channels_last else torch.contiguous_format
    return [m.to(device).to(memory_format=form) for m in load_run(unit.run).members]  # type: ignore[call-overload]


def logits_of(
    networks: Sequence[torch.nn.Module], x: Tensor, part: Part, data: Data, unit: Unit, device: torch.device
) -> Tensor:
    """[N, K] float32 on the CPU, members pooled, in the precision that the run was trained in."""
    batches = Batches(
        replace(part, x=x), BATCH, device=device, mean=data.mean, std=data.std, channels_last=unit.recipe.channels_last
    )
    half = unit.recipe.precision == "bfloat16"
    with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
        found = torch.stack([torch.cat([m(b).float() for b, _, _ in batches]) for m in networks])
    return together(found.cpu().clone())


def together(logits: Tensor) -> Tensor:
    """Members as one predictor."""
    return logits if logits.ndim == 2 else logits[0] if len(logits) == 1 else pool(logits)


def shifted_file(unit: Unit) -> str:
    return unit.record.replace("measured", "shifted").replace(".json", ".npy")


def save(path: Path, logits: Tensor) -> None:
    with atomic.file(path) as temporary, temporary.open("wb") as stream:
        np.save(stream, logits.float().numpy(), allow_pickle=False)


def held(path: Path) -> Tensor | None:
    return torch.from_numpy(np.load(path, allow_pickle=False)) if path.is_file() else None


def read(run: Path, split: str) -> Predictions:
    """Predictions of a run, members pooled."""
    found = files.read(run / f"{split}.npz")
    assert found.logits is not None
    return found if found.logits.ndim == 2 else replace(found, logits=together(found.logits), raw=False)


def joined(each: Sequence[Predictions]) -> Predictions:
    return replace(each[0], logits=pool(torch.stack([p.logits for p in each if p.logits is not None])), raw=False)


# -- what they say ---------------------------------------------------------------------------------------------------


def judged(
    test: Predictions, calibration: Predictions, logits: Tensor | None, names: Sequence[str], far: Tensor | None
) -> dict[str, Any]:
    """As it is and after temperature scaling, clean (with the intervals of resampled items), shifted, foreign."""
    fitted = fit("temperature", calibration)
    wanted = experiments("ar/table3/vanilla")[0].metrics
    out: dict[str, Row] = {}
    for name, change in ((AS_TRAINED, None), (TEMPERATURE, fitted)):
        prefix = "" if change is None else f"{TEMPERATURE}_"
        clean = test if change is None else change.predictions(test)
        out[name] = evaluate(clean, metrics=wanted).metrics
        if logits is not None:
            labels = test.labels[: logits.shape[1]]
            shifted: Callable[[Tensor], Tensor] = (lambda z: z) if change is None else change
            rows = grouped(names, [quick(shifted(z), labels) for z in logits])
            out |= {f"{prefix}{key}": row for key, row in rows.items()}
        if far is not None:
            out[f"{prefix}{OOD}"] = detection(clean, far if change is None else change(far))
    values = {v: {m: getattr(e, "value", e) for m, e in row.items()} for v, row in out.items()}
    bounds = {v: {m: (e.low, e.high) for m, e in row.items() if isinstance(e, Estimate)} for v, row in out.items()}
    scale = {k: float(v) for k, v in fitted.tensors().items() if v.numel() == 1}
    record = {"values": values, "intervals": bounds, "temperature": scale, "items": test.n, "sets": len(names)}
    return record if far is None else {**record, "entropy_histogram": histogram(far)}


def quick(logits: Tensor, labels: Tensor) -> dict[str, float | None]:
    """Values alone, without the sums that only classwise metrics need: there are thousands of these."""
    scores = reduce(predictions(logits, labels), classwise=False)
    return {m: e.value for m, e in evaluate_scores(scores, metrics=SHIFT_METRICS).items()}


def detection(inside: Predictions, outer: Tensor) -> dict[str, Any]:
    """AR §5.5: AUROC of telling CIFAR-100 by the entropy and by the confidence; the mean entropy of both sides."""
    other = replace(predictions(outer, torch.zeros(len(outer), dtype=torch.long)), raw=inside.raw)
    found = ood(inside, other, scores=("entropy", "max_probability"), intervals=False)
    assert inside.logits is not None
    return {
        "auroc_entropy": found["entropy"]["auroc"].value,
        "auroc_confidence": found["max_probability"]["auroc"].value,
        "fpr95_entropy": found["entropy"]["fpr95"].value,
        "entropy_kl": found.entropy_kl.value,
        "entropy": float(entropy(outer).mean()),
        "entropy_inside": float(entropy(inside.logits).mean()),
        "confidence": float(torch.softmax(outer.double(), -1).max(-1).values.mean()),
    }


def histogram(outer: Tensor) -> list[float]:
    """AR Fig. 4: shares of the foreign items in equal bins of entropy from 0 to ln K."""
    counts = torch.histc(entropy(outer).double(), ENTROPY_BINS, 0.0, float(np.log(outer.shape[-1])))
    return [float(c) / len(outer) for c in counts]


def spread(logits: Tensor, labels: Tensor) -> dict[str, float]:
    return {k: float(variance_over_runs(logits, labels, of).mean()) for k, of in READINGS.items()}  # type: ignore[arg-type]


def grouped(names: Sequence[str], rows: Sequence[Mapping[str, float | None]]) -> dict[str, Row]:
    """Means over all corrupted sets, by intensity and by type."""
    by: dict[str, list[Mapping[str, float | None]]] = {CORRUPTIONS: list(rows)}
    for name, row in zip(names, rows, strict=True):
        kind, _, severity = name.rpartition("-")
        by.setdefault(f"intensity_{severity}", []).append(row)
        by.setdefault(f"type_{kind}", []).append(row)
    out: dict[str, Row] = {key: mean(found) for key, found in by.items()}
    return out | {CORRUPTIONS: {**out[CORRUPTIONS], "sets": float(len(rows))}}


def mean(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    known = {m: [v for r in rows if (v := r[m]) is not None] for m in rows[0]}
    return {m: float(np.mean(v)) if v else None for m, v in known.items()}


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, json.dumps(jsonable(record)))
