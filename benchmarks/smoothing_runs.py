"""SS Fig. 3, Fig. 9 and the ResNet-18 rows of Table E.1, time-boxed: deterministic and MC dropout × smoothing.

    PYTHONPATH=src CALIBRANT_COMMIT=$(git rev-parse HEAD) \\
        python -m benchmarks.smoothing_runs --data-root DATA --data cifar100 --seeds 0 1 2 --epochs 30 --minutes 9 \\
        --out $OUT
    python -m benchmarks.smoothing_runs --smoke               # digits on the CPU, a minute: does it run?
    python -m benchmarks.smoothing_runs --gather FOLDER …      # afterwards, here: cells → results/, claim over seeds

`--only ss/table_b1 ss/figure_b2` takes other rows of the paper: its studies, one seed a cell.
For each seed the four networks are trained (`--epochs`: the schedule squeezed, and every cell says so: scale
`30of200`), or taken with `--take ROW:SEED=RUN/`. Each is then measured on test (ensemble sizes 1 … 50), against its
twin (the claim), and under corruption (`--shift-items` test images, sizes 1, 2, 5, 10). What leaves: a JSON a cell,
and NLLs of items for the claim over seeds. Trainings live in `--runs` and go on there in a later call.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from benchmarks.smoothing_measure import (
    FEW,
    MANY,
    Curve,
    Network,
    claim,
    claim_over_seeds,
    corrupted,
    curve,
    deep_curve,
    nll_of_items,
)
from calibrant.bench.store import KEY_LENGTH, Cell, Store
from calibrant.data import Data, load
from calibrant.metrics.evaluate import evaluate
from calibrant.papers import AS_TRAINED, Experiment, experiments
from calibrant.train.environment import environment
from calibrant.train.recipe import Recipe, digest
from calibrant.train.run import How, train
from calibrant.train.run import load as load_run
from calibrant.train.settings import setting
from calibrant.types import Predictions, Split, jsonable

ROOT = Path(__file__).resolve().parents[1]
FAST = ("engine=graph", "precision=bfloat16")
VARIANTS = ("", "_smooth", "_dropout", "_dropout_smooth")
SHIFT_SIZES = (1, 2, 5, 10)
RESERVE = 20.0  # seconds for measuring and packing at the end


class OutOfTime(Exception):
    """The box is full; what is trained so far goes on in a later call."""


class TimeBox:
    """One call: its arguments, its clock, its data, its store."""

    def __init__(self, a: argparse.Namespace) -> None:
        self.a, self.end = a, time.time() + 60 * a.minutes
        kind = ("cuda" if torch.cuda.is_available() else "cpu") if a.device == "auto" else a.device
        self.device = torch.device(kind)
        self.store = Store(a.out / "cells")
        self.take = dict(t.split("=", 1) for t in a.take)
        self.data: dict[str, Data] = {}
        self.speed: dict[str, float] = {}  # seconds an epoch
        self.singles: dict[tuple[str, str], list[Predictions]] = {}  # (row, scale) → each seed's network alone

    def left(self) -> float:
        return self.end - time.time() - RESERVE

    def recipe(self, experiment: Experiment, seed: int) -> Recipe:
        recipe = replace(experiment.recipe, seed=seed).with_settings(dict(setting(s) for s in self.a.set))
        return recipe.scaled(self.a.epochs) if self.a.epochs else recipe

    def loaded(self, recipe: Recipe) -> Data:
        key = digest({"name": recipe.data.name, "seed": recipe.data.seed, "sizes": recipe.data.sizes})
        if key not in self.data:
            d = recipe.data
            self.data[key] = load(d.name, root=self.a.data_root, seed=d.seed, sizes=d.sizes)
        return self.data[key]

    def trained(
        self, experiment: Experiment, recipe: Recipe, seed: int, data: Data | None = None
    ) -> tuple[Path, dict[str, Any]]:
        """The run's folder and what its training says; OutOfTime if it cannot end in the box."""
        taken = self.take.get(f"{experiment.row}:{seed}")
        if taken is not None:
            return Path(taken), json.loads((Path(taken) / "metrics.json").read_text("utf-8"))
        folder = self.a.runs / f"ss-{recipe.key()[:KEY_LENGTH]}"  # rows of several tables share a training
        done = max((int(p.stem) for p in (folder / "checkpoint").glob("*.json")), default=0)
        if (recipe.epochs - done) * self.speed.get(recipe.network.name, 0.0) > self.left():
            raise OutOfTime
        start = time.time()

        def watch(epoch: int, validation: object) -> None:
            if epoch == done + 2:  # the first epoch warms up
                self.speed[recipe.network.name] = (time.time() - start) / 2
            if self.left() < 0 and epoch < recipe.epochs:
                raise OutOfTime

        how = How(device=self.device.type, root=self.a.data_root, every=5, quiet=True, listen=watch)
        return folder, train(recipe, folder, how, data or self.loaded(recipe))


def measure(box: TimeBox, experiment: Experiment, seed: int) -> tuple[Cell, Curve]:
    """One network: trained or taken, its row of Table E.1, its curve, its corruptions."""
    recipe, a = box.recipe(experiment, seed), box.a
    run, made = box.trained(experiment, recipe, seed)
    found, data = load_run(run), box.loaded(recipe)
    layout = torch.channels_last if recipe.channels_last else torch.contiguous_format
    model = found.members[0].to(box.device, memory_format=layout)
    network = Network(model, data, box.device, recipe.precision == "bfloat16", recipe.channels_last)
    test = data[Split.TEST]
    x, y = test.x[: a.items], test.y[: a.items]
    single = curve(network, x, y, 1, seed)
    rows = {AS_TRAINED: evaluate(single.kept[1], metrics=experiment.metrics)}
    drop = experiment.ensemble is not None
    many = curve(network, x, y, a.members, seed) if drop else single
    if drop:
        rows["dropout"] = evaluate(many.kept[a.members], metrics=experiment.metrics)
    extras: dict[str, Any] = {
        "curve": dict(many.rows),
        "epochs": made["epochs"],
        "images_per_second": made["images_per_second"],
    }
    if a.shift_items and box.left() > 0:
        sizes = [s for s in SHIFT_SIZES if s <= a.members] if drop else [1]
        shown = (x[: a.shift_items], y[: a.shift_items])
        extras["corruption"] = corrupted(network, *shown, sizes, seed, a.shifts, a.severities)
    settings = {"recipe": {k: v for k, v in recipe.plain().items() if k not in ("name", "about")}}
    settings |= {"members": a.members if drop else 1, "items": len(y), "shift_items": a.shift_items}
    original = experiment.recipe.epochs
    scale = "smoke" if a.smoke else "paper" if recipe.epochs == original else f"{recipe.epochs}of{original}"
    scaled = "" if scale == "paper" else f"; schedule squeezed into {recipe.epochs} of {original} epochs"
    where = environment(box.device)
    cell = Cell(
        experiment=experiment.name, seed=seed, scale=scale, key=digest(settings), status="done", settings=settings,
        measured={v: {m: e.value for m, e in row.items()} for v, row in rows.items()},
        intervals={v: {m: (e.low, e.high) for m, e in row.items()} for v, row in rows.items()},
        reported=experiment.reported, note=experiment.note + scaled, seconds=made["train_seconds"],
        device=where["device"], environment=where, commit=where["commit"], command=a.command, extras=extras,
    )  # fmt: skip
    items = {f"nll_{n}": nll_of_items(p).float().numpy() for n, p in many.kept.items()}
    box.singles.setdefault((experiment.row, scale), []).append(single.kept[1])
    if experiment.table == "table_e1":  # for the claim over seeds
        np.savez_compressed(a.out / f"items-{experiment.row}-{scale}-{seed}.npz", **items)
    return cell, many


def run(box: TimeBox) -> int:
    """Seed after seed, the four networks (or the rows asked for); a pair of MC dropout networks gives the claim."""
    a = box.a
    patterns = a.only or [f"ss/table_e1/{a.row}{variant}" for variant in VARIANTS]
    for seed in a.seeds:
        curves: dict[str, Curve] = {}
        for experiment in (e for pattern in patterns for e in experiments(pattern)):
            if a.smoke:
                experiment = tiny(experiment)
            try:
                cell, curves[experiment.row] = measure(box, experiment, seed)
            except OutOfTime:
                print(f"out of time: {experiment.row} seed {seed} is not finished", flush=True)
                return 0
            plain = curves.get(experiment.row.removesuffix("_smooth"))
            if experiment.row.endswith("_dropout_smooth") and plain is not None:
                cell = replace(cell, extras={**cell.extras, "claim": claim(plain, curves[experiment.row])})
                print(json.dumps(jsonable(cell.extras["claim"]["metrics"]["nll"])), flush=True)
            box.store.write(experiment, cell)
            said = {v: {m: row.get(m) for m in ("nll", "accuracy", "ece", "auroc")} for v, row in cell.measured.items()}
            print(f"{experiment.row} seed {seed}: {cell.seconds:.0f} s {json.dumps(jsonable(said))}", flush=True)
    return 0


def deep(box: TimeBox) -> None:
    """SS Fig. E.1: the networks of several seeds as deep ensembles of 1, 2, …, with and without smoothing."""
    for (row, scale), found in box.singles.items():
        if len(found) > 1:
            rows = deep_curve(found)
            text = json.dumps({"row": row, "scale": scale, "members": len(found), "curve": rows}, indent=1)
            (box.a.out / f"deep-{row}-{scale}.json").write_text(text + "\n", "utf-8")


def tiny(experiment: Experiment) -> Experiment:
    """The same row on digits with a small network, for --smoke."""
    options = dict(experiment.recipe.network.options)
    network = "resnet18" if "where" in options.get("smooth", {}) else "resnet20"  # named places must exist
    changes = {"data.name": "digits", "data.sizes": None, "network": {"name": network, **options}, "batch": 64}
    return replace(experiment, recipe=experiment.recipe.with_settings({**changes, "augment": None}))


def gather(folders: Sequence[Path], results: Path) -> int:
    """Cells into `results`; where several seeds of both MC dropout networks are there, the claim over seeds."""
    by_row: dict[tuple[str, str, int], Path] = {}
    for folder in folders:
        for path in sorted((folder / "cells").rglob("*.json")):
            if path.name.startswith("smoke-"):
                continue
            to = results / path.relative_to(folder / "cells")
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
        for path in folder.glob("deep-*.json"):
            if path.stem.endswith("-smoke"):
                continue
            to = results / "ss" / "figure_e1" / path.name.removeprefix("deep-")
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_bytes(path.read_bytes())
        for path in folder.glob("items-*.npz"):
            row, scale, seed = path.stem.removeprefix("items-").rsplit("-", 2)
            if scale != "smoke":
                by_row[row, scale, int(seed)] = path
    pairs: dict[tuple[str, str], list[np.ndarray[Any, Any]]] = {}
    for (row, scale, seed), path in sorted(by_row.items()):
        twin = by_row.get((f"{row}_smooth", scale, seed))
        if not row.endswith("_dropout") or twin is None:
            continue
        with np.load(path, allow_pickle=False) as plain, np.load(twin, allow_pickle=False) as smooth:
            if f"nll_{MANY}" not in plain.files:
                print(f"{path.name}: fewer than {MANY} members; not part of the claim")
                continue
            pairs.setdefault((row, scale), []).append(smooth[f"nll_{FEW}"] - plain[f"nll_{MANY}"])
    for (row, scale), found in pairs.items():
        said = claim_over_seeds(torch.from_numpy(np.stack(found)).double())
        print(f"{row} {scale}: {FEW} with smoothing − {MANY} without: {json.dumps(said)}")
        to = results / "ss" / "figure3" / f"{row}-{scale}.json"
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(json.dumps({"claim": f"{FEW} with smoothing − {MANY} without", **said}, indent=1) + "\n", "utf-8")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar100", choices=["cifar10", "cifar100"])
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, help="squeeze the 200 epochs into these")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--members", type=int, default=MANY)
    parser.add_argument("--items", type=int, help="test items; by default all")
    parser.add_argument("--shift-items", type=int, default=1000, help="of them, how many are corrupted; 0: none")
    parser.add_argument("--shifts", nargs="+", help="some of the 19 corruptions")
    parser.add_argument("--severities", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", help="rows of SS instead of the four, as ss/table_b1 or ss/figure_b2/s3")
    parser.add_argument("--set", nargs="*", default=list(FAST), help="settings of every recipe")
    parser.add_argument("--take", nargs="*", default=[], help="ROW:SEED=RUN/, a run that is trained")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("smoothing-out"))
    parser.add_argument("--gather", type=Path, nargs="+")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--smoke", action="store_true")
    a = parser.parse_args(argv)
    if a.gather:
        return gather(a.gather, a.results)
    a.row = f"{a.data}_resnet18"
    rows = f"--only {' '.join(a.only)}" if a.only else f"--data {a.data}"
    a.command = f"python -m benchmarks.smoothing_runs {rows} --epochs {a.epochs} --set {' '.join(a.set)}"
    if a.smoke:
        a.set, a.epochs, a.members, a.items, a.shift_items = ["channels_last=true"], 2, 4, 200, 60
        a.shifts, a.severities, a.device = ["gaussian_noise", "contrast"], [1, 5], "cpu"
    a.out.mkdir(parents=True, exist_ok=True)
    box = TimeBox(a)
    code = run(box)
    deep(box)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
