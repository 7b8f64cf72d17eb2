"""What the finished runs of `ar_runs` say: cells of Tables 3 and 5, ensembles of seeds, Fig. 1 and 2, shifts, OOD.

A single run is a cell of ar/table3/METHOD; seeds pooled are ar/table3/ensemble_of_METHOD; what is about several runs
(variance, by level and under corruption) is ar/table5/METHOD. Logits under the 19 × 5 corruptions and on CIFAR-100 are
kept per run under runs/, one file each, so that a later call goes on where this one ended.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant import files
from calibrant.attacks import levels as cut
from calibrant.bench.store import Cell, Store
from calibrant.data import Data, load
from calibrant.data.batches import Batches
from calibrant.data.records import Part
from calibrant.diagnostics.levels import calibration_by_level
from calibrant.diagnostics.stability import variance_over_runs
from calibrant.errors import FileError
from calibrant.files import atomic
from calibrant.functional.border import predictions
from calibrant.functional.pooling import entropy, pool
from calibrant.functional.scores import reduce
from calibrant.metrics.evaluate import evaluate, evaluate_scores
from calibrant.papers import AS_TRAINED, Experiment, experiments
from calibrant.papers.ar import CORRUPTIONS, TABLE3, TABLE5
from calibrant.posthoc.fit import fit
from calibrant.shifts import SEVERITIES, SUBSETS, corrupt
from calibrant.train import distances
from calibrant.train.environment import device_name, environment
from calibrant.train.recipe import digest
from calibrant.train.run import load as load_run
from calibrant.types import Predictions, Split

if TYPE_CHECKING:
    from benchmarks.ar_runs import Unit

BATCH = 2_500
SHIFT_METRICS = ("accuracy", "ece", "nll")
OOD = "cifar100"
MANY = 2  # runs from which there is a pool and a variance


@dataclass(frozen=True)
class Finished:
    """A run that ended: its predictions, and where more of them are kept."""

    unit: Unit
    test: Predictions
    calibration: Predictions

    @classmethod
    def of(cls, unit: Unit) -> Finished:
        return cls(unit, files.read(unit.run / "test.npz"), files.read(unit.run / "calibration.npz"))

    def logits(self, name: str) -> Tensor | None:
        """Pooled logits [N, K] on another set of images; None where they were not computed."""
        path = self.unit.run / "shifts" / f"{name}.npy"
        return pooled(torch.from_numpy(np.load(path, allow_pickle=False))) if path.is_file() else None


def pooled(logits: Tensor) -> Tensor:
    return logits if logits.ndim == 2 else logits[0] if len(logits) == 1 else pool(logits)


def measure(units: Sequence[Unit], a: argparse.Namespace, end: float) -> None:
    """Cells of everything that is done, into runs/store (and packed into --out)."""
    from benchmarks import gpu_runs

    found = [Finished.of(u) for u in units if u.what == "train" and u.done()]
    if not found:
        print("nothing is done yet", flush=True)
        return
    d = units[0].recipe.data
    data = load(d.name, root=a.data_root, seed=d.seed, sizes=d.sizes)
    if a.corruptions:
        shifted(found, data, a, end)
    out_of_distribution(found, data, a)
    store = Store(a.runs / ("smoke-store" if a.smoke else "ar-store"))
    written = cells(found, units, data, store, a)
    print(f"{len(written)} cells in {time.time() - end + 60 * a.minutes:.0f} s of {60 * a.minutes:.0f}", flush=True)
    if a.out is not None:
        gpu_runs.pack(store, a.out)


# -- logits on other images ------------------------------------------------------------------------------------------


def sets() -> list[tuple[str, str, int]]:
    """(file, corruption, severity), severity by severity, so that a mean over corruptions is complete early."""
    return [(f"{name}-{s}", name, s) for s in range(1, SEVERITIES + 1) for name in SUBSETS["19"]]


def shifted(found: Sequence[Finished], data: Data, a: argparse.Namespace, end: float) -> None:
    """Logits of every run under every corruption; each image set is made once for all the runs that miss it."""
    device = torch.device(a.device)
    part = data[Split.TEST]
    images = part.x.to(device)
    networks: dict[Path, list[torch.nn.Module]] = {}
    reserve, start, done = 0.15 * 60 * a.minutes, time.time(), 0
    wanted = [line for line in sets() if a.shifts is None or line[0] in a.shifts]
    for file, name, severity in wanted:
        missing = [f for f in found if not (f.unit.run / "shifts" / f"{file}.npy").is_file()]
        if not missing:
            continue
        if time.time() > end - reserve:
            print(f"out of time at {file}: later corruptions are missing", flush=True)
            return
        moved = torch.cat([corrupt(images[i : i + BATCH], name, severity, 0, index=i) for i in range(0, part.n, BATCH)])
        write_logits(missing, moved, part, data, file, networks, device)
        done += 1
    if done:
        print(f"{done} corrupted sets, {len(found)} runs: {time.time() - start:.0f} s", flush=True)


def out_of_distribution(found: Sequence[Finished], data: Data, a: argparse.Namespace) -> None:
    """CIFAR-100's test images, where they lie."""
    if data.name != "cifar10":
        return
    try:
        other = load(OOD, root=a.data_root)[Split.TEST]
    except FileError:
        print(f"{OOD} is not there: no out-of-distribution numbers", flush=True)
        return
    missing = [f for f in found if not (f.unit.run / "shifts" / f"{OOD}.npy").is_file()]
    write_logits(missing, other.x.to(a.device), other, data, OOD, {}, torch.device(a.device))


def write_logits(
    found: Sequence[Finished],
    x: Tensor,
    part: Part,
    data: Data,
    file: str,
    networks: dict[Path, list[torch.nn.Module]],
    device: torch.device,
) -> None:
    """[M, N, K] float32 of each run, in the precision that it was trained in."""
    for f in found:
        recipe = f.unit.recipe
        batches = Batches(
            replace(part, x=x), BATCH, device=device, mean=data.mean, std=data.std, channels_last=recipe.channels_last
        )
        if f.unit.run not in networks:
            members = [m.to(device) for m in load_run(f.unit.run).members]
            form = torch.channels_last if recipe.channels_last else torch.contiguous_format
            networks[f.unit.run] = [m.to(memory_format=form) for m in members]  # type: ignore[call-overload]
        half = recipe.precision == "bfloat16"
        with torch.inference_mode(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
            logits = torch.stack([torch.cat([m(b).float() for b, _, _ in batches]) for m in networks[f.unit.run]])
        path = f.unit.run / "shifts" / f"{file}.npy"
        path.parent.mkdir(exist_ok=True)
        with atomic.file(path) as temporary:
            np.save(temporary, logits.cpu().numpy(), allow_pickle=False)


# -- cells -----------------------------------------------------------------------------------------------------------


def cells(
    found: Sequence[Finished], units: Sequence[Unit], data: Data, store: Store, a: argparse.Namespace
) -> list[Cell]:
    from benchmarks.ar_runs import name_of

    level, distance = test_levels(units, data, a)
    out = []
    by_method: dict[str, list[Finished]] = {}
    for f in found:
        by_method.setdefault(f.unit.method, []).append(f)
    for method, runs in by_method.items():
        for f in runs:
            extras = {"by_level": None} if level is None else {"by_level": by_level([f.test], level, distance)}
            variants = judged(f.test, f.calibration) | shifts_of(lambda n, f=f: f.logits(n), f.test.labels, f.test)
            out.append(_write(name_of(method), [f], variants, extras, store, a, f.test))
        if len(runs) < MANY or f"ensemble_of_{method}" not in TABLE3:
            continue
        test, calibration = (joined([getattr(f, n) for f in runs]) for n in ("test", "calibration"))
        variants = judged(test, calibration) | shifts_of(lambda n, runs=runs: together(runs, n), test.labels, test)
        extras = {} if level is None else {"by_level": by_level([test], level, distance)}
        out.append(_write(f"ar/table3/ensemble_of_{method}", runs, variants, extras, store, a))
        if method in TABLE5:
            rows = {} if level is None else {"by_level": by_level([f.test for f in runs], level, distance)}
            out.append(_write(f"ar/table5/{method}", runs, variances(runs), rows, store, a))
    for cell in out:
        row = cell.measured.get(AS_TRAINED, {})
        words = " ".join(
            f"{m} {row[m]:.4f}" for m in ("accuracy", "ece", "nll", "auroc", "variance") if row.get(m) is not None
        )
        shift = cell.measured.get(CORRUPTIONS, {})
        more = " ".join(f"c-{m} {shift[m]:.4f}" for m in ("ece", "variance") if shift.get(m) is not None)
        print(f"{cell.experiment} seed {cell.seed}: {words} {more}", flush=True)
    return out


def test_levels(units: Sequence[Unit], data: Data, a: argparse.Namespace) -> tuple[Tensor | None, Tensor | None]:
    """Ten levels of the test items, by the first vanilla run's robustness."""
    attacks = [u for u in units if u.what == "attack" and u.done()]
    if not attacks:
        return None, None
    found = distances.read(attacks[0].files()[-1])
    found.check(data, Split.TEST, str(attacks[0].files()[-1]))
    return cut(found.distance, 5 if a.smoke else 10), found.distance


def by_level(runs: list[Predictions], level: Tensor, distance: Tensor | None) -> dict[str, Any]:
    """Fig. 1 and 2: with several runs also the variance, of the true class and over all classes."""
    made = calibration_by_level(runs, level, distance=distance, intervals=False).to_dict()
    if len(runs) > 1:
        also = calibration_by_level(runs, level, of="classes", intervals=False)
        made["variance_of_all_classes"] = [row.variance.value for row in also.rows if row.variance is not None]
    return made


def judged(test: Predictions, calibration: Predictions) -> dict[str, Mapping[str, Any]]:
    """As it is and after temperature scaling, with the intervals of resampled items."""
    wanted = experiments("ar/table3/vanilla")[0].metrics
    fitted = fit("temperature", calibration)
    return {
        AS_TRAINED: evaluate(test, metrics=wanted).metrics,
        "temperature": evaluate(fitted.predictions(test), metrics=wanted, intervals=False).metrics,
    }


def shifts_of(logits: Any, labels: Tensor, test: Predictions) -> dict[str, Mapping[str, Any]]:
    """Means over the corruptions that there are, all and by intensity; CIFAR-100 against the test images."""
    rows: dict[int, list[dict[str, float | None]]] = {}
    for file, _, severity in sets():
        z = logits(file)
        if z is not None:
            rows.setdefault(severity, []).append(quick(z, labels))
    out: dict[str, Mapping[str, Any]] = {f"intensity_{s}": mean(found) for s, found in rows.items()}
    if rows:
        out[CORRUPTIONS] = mean([r for found in rows.values() for r in found])
    outside = logits(OOD)
    if outside is not None and test.logits is not None:
        inside = pooled(test.logits)
        out[OOD] = {
            "auroc_entropy": separation(entropy(inside), entropy(outside)),
            "auroc_confidence": separation(-confidence(inside), -confidence(outside)),
            "entropy": float(entropy(outside).mean()),
        }
    return out


def quick(logits: Tensor, labels: Tensor) -> dict[str, float | None]:
    """Values alone, without the sums that only classwise metrics need: there are thousands of these."""
    scores = reduce(predictions(logits, labels), classwise=False)
    return {m: e.value for m, e in evaluate_scores(scores, metrics=SHIFT_METRICS).items()}


def mean(rows: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    known = {m: [v for r in rows if (v := r[m]) is not None] for m in rows[0]}
    return {**{m: float(np.mean(v)) if v else None for m, v in known.items()}, "sets": float(len(rows))}


def confidence(logits: Tensor) -> Tensor:
    return torch.softmax(logits.double(), -1).max(-1).values


def separation(inside: Tensor, outside: Tensor) -> float:
    """AUROC of telling outside (higher) from inside; ties at mid-rank."""
    from sklearn.metrics import roc_auc_score

    truth = np.r_[np.zeros(len(inside)), np.ones(len(outside))]
    return float(roc_auc_score(truth, torch.cat([inside, outside]).numpy()))


def together(runs: Sequence[Finished], name: str) -> Tensor | None:
    each = [f.logits(name) for f in runs]
    return None if any(z is None for z in each) else pool(torch.stack([z for z in each if z is not None]))


def joined(each: Sequence[Predictions]) -> Predictions:
    return replace(
        each[0], logits=pool(torch.stack([pooled(p.logits) for p in each if p.logits is not None])), raw=False
    )


def variances(runs: Sequence[Finished]) -> dict[str, Mapping[str, float]]:
    """Variance over runs (AR §3.1) on test and under each intensity; also over all classes, as a second reading."""

    def of(name: str | None) -> dict[str, float] | None:
        each = [
            pooled(f.test.logits) if name is None and f.test.logits is not None else f.logits(name or "") for f in runs
        ]
        if any(z is None for z in each):
            return None
        stack = torch.stack([z.double() for z in each if z is not None])
        readings = {"variance": "true", "variance_of_all_classes": "classes", "variance_of_confidence": "confidence"}
        return {k: float(variance_over_runs(stack, runs[0].test.labels, o).mean()) for k, o in readings.items()}  # type: ignore[arg-type]

    out: dict[str, Mapping[str, float]] = {AS_TRAINED: of(None) or {}}
    rows: dict[int, list[dict[str, float]]] = {}
    for file, _, severity in sets():
        row = of(file)
        if row is not None:
            rows.setdefault(severity, []).append(row)
    out |= {f"intensity_{s}": mean(found) for s, found in rows.items()}  # type: ignore[misc]
    if rows:
        out[CORRUPTIONS] = mean([r for found in rows.values() for r in found])  # type: ignore[assignment]
    return out


def _write(
    name: str,
    runs: Sequence[Finished],
    variants: Mapping[str, Mapping[str, Any]],
    extras: Mapping[str, Any],
    store: Store,
    a: argparse.Namespace,
    test: Predictions | None = None,
) -> Cell:
    """File a cell; of several runs, the settings name all of them and the seed is 0."""
    from benchmarks.ar_runs import schedule_note

    experiment: Experiment = replace(experiments(name)[0], recipe=runs[0].unit.recipe)
    one = len(runs) == 1
    seed = runs[0].unit.seed if one else 0
    note = schedule_note(a)
    scale = "small" if note else "paper"
    settings = experiment.settings(seed, "paper") | {"scale": scale}
    if not one:
        settings |= {"pooled": [f.unit.recipe.key() for f in runs], "seeds": [f.unit.seed for f in runs]}
    where = environment(a.device)
    records = [_record(f) for f in runs]
    cell = Cell(
        experiment=name,
        seed=seed,
        scale=scale,
        key=digest(settings),
        status="done",
        settings=settings,
        measured={v: {m: getattr(e, "value", e) for m, e in row.items()} for v, row in variants.items()},
        intervals={v: {m: (e.low, e.high) for m, e in row.items() if hasattr(e, "low")} for v, row in variants.items()},
        reported=experiment.reported,
        note="; ".join(n for n in (note, experiment.note, "" if one else f"{len(runs)} runs pooled") if n),
        seconds=sum(r["train_seconds"] for r in records),
        device=device_name(a.device),
        environment=where,
        commit=where["commit"],
        command=command(a),
        extras={**extras, "runs": len(runs), "images_per_second": records[0]["images_per_second"]},
    )
    store.write(experiment, cell, test if a.keep_logits else None)
    return cell


def command(a: argparse.Namespace) -> str:
    words = [f"--epochs {a.epochs}" if a.epochs else "", f"--batch {a.batch}" if a.batch else ""]
    words += ["--smoke" if a.smoke else "", f"--set {' '.join(a.set)}" if a.set else ""]
    return " ".join(["python benchmarks/ar_runs.py", *(w for w in words if w)])


def _record(f: Finished) -> dict[str, Any]:
    import json

    found: dict[str, Any] = json.loads((f.unit.run / "metrics.json").read_text("utf-8"))
    return found
