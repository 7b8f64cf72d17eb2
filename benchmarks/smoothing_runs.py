"""SS Fig. 3, Fig. 9, Table E.1, Fig. E.1 and the studies on one GPU, time-boxed, several processes at a time.

    PYTHONPATH=src CALIBRANT_COMMIT=$(git rev-parse HEAD) \\
        python -m benchmarks.smoothing_runs --data-root DATA --epochs 22 --minutes 9 --parallel 3 --out $OUT
    python -m benchmarks.smoothing_runs --list --epochs 22 --parallel 3      # the units in order, with guesses
    python -m benchmarks.smoothing_runs --smoke --parallel 2                  # digits on the CPU: does it run?
    python -m benchmarks.smoothing_runs --gather FOLDER …    # afterwards, here: cells → results/, claims over all seeds

Units, the most telling first: CIFAR-100's four networks (deterministic and MC dropout × smoothing) seed after seed,
then CIFAR-10's, then the studies, one seed a cell. `--only ss/table_b1 ss/figure_b2` takes these rows alone. Rows of
several tables that are one network share a training. `--epochs`, `--study-epochs` and `--batch` squeeze the schedule,
and every cell says so (scale `22of200`). A unit is trained, then measured on test (ensemble sizes 1 … 50) and under
corruption (`--shift-items` images, made once); begun only if that should end in time. Trainings live in `--runs` and go
on there in a later call, cells that lie in `results/` are not measured again. What leaves: cells.jsonl, claims.json and
arrays of items, each below 16 MiB (`smoothing_pack`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from benchmarks import smoothing_pack
from benchmarks.smoothing_measure import MANY, Network, corrupted, corruptions, curve
from benchmarks.smoothing_units import FAST, Unit, plan
from benchmarks.workers import ROOT, spawn, trained, work
from calibrant.bench.store import Cell, Store
from calibrant.data import Data, load
from calibrant.files import atomic
from calibrant.metrics.evaluate import evaluate
from calibrant.papers import AS_TRAINED
from calibrant.papers.experiment import schedule_note
from calibrant.training.environment import environment
from calibrant.training.recipe import Recipe, digest
from calibrant.training.run import How
from calibrant.training.run_folder import load as load_run
from calibrant.types import Split, jsonable

SHIFT_SIZES = (1, 2, 5, 10)


class Measuring:
    """What one process needs for its units: device and data."""

    def __init__(self, a: argparse.Namespace) -> None:
        self.a = a
        kind = ("cuda" if torch.cuda.is_available() else "cpu") if a.device == "auto" else a.device
        self.device = torch.device(kind)
        self.data: dict[str, Data] = {}

    def loaded(self, recipe: Recipe) -> Data:
        d = recipe.data
        key = digest({"name": d.name, "seed": d.seed, "sizes": d.sizes})
        if key not in self.data:
            self.data[key] = load(d.name, root=self.a.data_root, seed=d.seed, sizes=d.sizes)
        return self.data[key]

    def __call__(self, unit: Unit) -> None:
        data = self.loaded(unit.recipe)
        how = How(device=self.device.type, root=self.a.data_root)
        made = trained(unit.recipe, unit.folder, data, how, self.a.deadline)
        start = time.time()
        measured, extras = self.measured(unit, data)
        extras |= {
            "epochs": made["epochs"],
            "images_per_second": made["images_per_second"],
            "parallel": self.a.parallel,
        }
        complete = not unit.shifts or "corruption" in extras
        where = environment(self.device)
        values = {v: {m: x.value for m, x in row.items()} for v, row in measured.items()}
        for e in unit.rows:
            cell = Cell(
                experiment=e.name, seed=unit.seed, scale=unit.scale, key=digest(unit.settings), status="done",
                settings=unit.settings, measured=values,
                intervals={v: {m: (x.low, x.high) for m, x in row.items()} for v, row in measured.items()},
                reported=e.reported, note="; ".join(filter(None, [e.note, schedule_note(unit.recipe, e.recipe)])),
                seconds=made["train_seconds"], device=where["device"], environment=where, commit=where["commit"],
                command=self.a.command, extras=extras,
            )  # fmt: skip
            Store(self.a.cells).write(cell)
        took = time.time() - start
        record = {"key": digest(unit.settings), "complete": complete, "seconds": took, "drop": unit.drop}
        record |= {"shifts": unit.shifts, "rows": [e.name for e in unit.rows], "scale": unit.scale, "seed": unit.seed}
        atomic.write_text(unit.folder / "measured.json", json.dumps(record, indent=1))
        said = {v: {m: row.get(m) for m in ("nll", "accuracy", "ece", "auroc")} for v, row in values.items()}
        print(
            f"{unit.name}: {made['train_seconds']:.0f} s at {made['images_per_second']:,.0f} images/s, measured in "
            f"{took:.0f} s {json.dumps(jsonable(said))}",
            flush=True,
        )

    def measured(self, unit: Unit, data: Data) -> tuple[dict[str, Any], dict[str, Any]]:
        """Table E.1's row, Fig. 3's curve, Fig. 9's corruptions; what the claims need stays in the run's folder."""
        a, recipe, seed = self.a, unit.recipe, unit.seed
        layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
        model: Any = load_run(unit.folder).members[0]
        model.to(self.device, memory_format=layout)
        network = Network(model, data, self.device, recipe.precision == "bfloat16", recipe.channels_last, unit.where)
        x, y = data[Split.TEST].x[: a.items], data[Split.TEST].y[: a.items]
        single = curve(network, x, y, 1, seed)
        metrics = unit.rows[0].metrics
        rows = {AS_TRAINED: evaluate(single.kept[1], metrics=metrics)}
        many = curve(network, x, y, a.members, seed) if unit.drop else single
        if unit.drop:
            rows["dropout"] = evaluate(many.kept[a.members], metrics=metrics)
        kept = {f"{'single' if p is single else 'pool'}_{n}": p.kept[n] for p in (single, many) for n in p.kept}
        arrays: dict[str, Any] = {name: p.logits.numpy() for name, p in kept.items() if p.logits is not None}
        (unit.folder / "measured.json").unlink(missing_ok=True)  # an earlier one is of the arrays that go now
        with atomic.file(unit.folder / "kept.npz") as to:
            np.savez(to, labels=y.numpy(), **arrays)
        extras: dict[str, Any] = {"curve": dict(many.rows)}
        if unit.shifts and time.time() < a.deadline:
            sizes = [s for s in SHIFT_SIZES if s <= a.members] if unit.drop else [1]
            shown = x[: a.shift_items]
            images = corruptions(shown, a.runs, self.device, a.shifts, a.severities)
            extras["corruption"] = corrupted(network, images, y[: a.shift_items], sizes, seed)
        return rows, extras


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["cifar100", "cifar10"], choices=["cifar10", "cifar100"])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, help="squeeze the 200 epochs into these")
    parser.add_argument("--study-epochs", type=int, help="those of the studies; default --epochs")
    parser.add_argument("--batch", type=int, help="default the paper's 128; the rate goes with its root")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--reserve", type=float, default=30.0, help="seconds kept for claims and packing")
    parser.add_argument("--parallel", type=int, default=1, help="processes")
    parser.add_argument("--members", type=int, default=MANY)
    parser.add_argument("--items", type=int, help="test items; by default all")
    parser.add_argument("--shift-items", type=int, default=1000, help="of them, how many are corrupted; 0: none")
    parser.add_argument("--shifts", nargs="+", help="some of the 19 corruptions")
    parser.add_argument("--severities", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--studies", action=argparse.BooleanOptionalAction, default=True, help="after Table E.1's rows")
    parser.add_argument("--only", nargs="+", help="rows of SS instead, as ss/table_b1 or ss/figure_b2/s3")
    parser.add_argument("--set", nargs="*", default=list(FAST), help="settings of every recipe")
    parser.add_argument("--runs", type=Path, help="default runs/; --smoke: OUT/runs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("smoothing-out"))
    parser.add_argument("--gather", type=Path, nargs="+")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--list", action="store_true", help="the units in order, and the guess of their time")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    a = parser.parse_args(argv)
    if a.gather:
        return smoothing_pack.gather(a.gather, a.results)
    rows = f"--only {' '.join(a.only)}" if a.only else f"--data {' '.join(a.data)}"
    squeeze = "".join(f" --{k.replace('_', '-')} {v}" for k in ("epochs", "study_epochs", "batch") if (v := vars(a)[k]))
    a.command = f"python -m benchmarks.smoothing_runs {rows}{squeeze} --set {' '.join(a.set)}"
    if a.smoke:
        a.set, a.epochs, a.study_epochs, a.members, a.items = ["channels_last=true"], a.epochs or 2, None, 4, 200
        a.shift_items, a.shifts, a.severities, a.device = 60, ["gaussian_noise", "contrast"], [1, 5], "cpu"
        a.data, a.seeds, a.studies = ["cifar100"], a.seeds[:2], False
    a.runs = a.runs or (a.out / "runs" if a.smoke else ROOT / "runs")
    a.cells = a.runs / "ss-cells"
    if a.list:
        return listed(plan(a), a.parallel)
    worker = a.deadline is not None
    if worker or a.parallel == 1:
        a.deadline = a.deadline or time.time() + 60 * a.minutes - a.reserve
        work(plan(a), Measuring(a), a.deadline)
    else:
        a.deadline = time.time() + 60 * a.minutes - a.reserve
        words = [*(sys.argv[1:] if argv is None else argv), "--deadline", repr(a.deadline)]
        codes = spawn("benchmarks.smoothing_runs", words, a.parallel)
        print(f"workers ended with {codes}", flush=True)
    if not worker:
        units = plan(a)
        for unit in units:
            if not unit.done():
                print(f"not done: {unit.name} ({unit.seconds():.0f} s)", flush=True)
        smoothing_pack.pack([(u.folder, u.rows, u.seed, u.scale) for u in units], a)
    return 0


def listed(units: Sequence[Unit], parallel: int) -> int:
    total = 0.0
    for unit in units:
        seconds = 0.0 if unit.done() else unit.seconds()
        total += seconds / parallel
        print(f"{unit.name:<58} {unit.recipe.epochs:>4} epochs {seconds:6.0f} s   after {total / 60:6.1f} min")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
