"""The plan of GPU runs, time-boxed: as many cells of results/PLAN.md as fit, in its order, a few at a time.

    PYTHONPATH=src CALIBRANT_COMMIT=$(git rev-parse HEAD) \\
        python benchmarks/gpu_runs.py --data-root DATA --minutes 9 --parallel 3 --out $OUT
    python benchmarks/gpu_runs.py --unpack FOLDER              # afterwards, here: cells → results/, predictions beside

Large networks fill the GPU: run them alone (`--parallel 1 --only ss`), small ones a few at a time (`--parallel 3
--only rc pep`). Each cell is a process of its own (a crash costs one cell), trained by `calibrant.bench.measure` under
runs/, which is kept between calls to one machine: an unfinished training goes on there. Cells that results/ or
runs/store already hold are not run again. What leaves: parcels
(`calibrant bench pack`). A cell is only begun if it should end in time, by the speeds below or those measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from calibrant.bench import parcel
from calibrant.bench.store import KEY_LENGTH, Cell, Store
from calibrant.papers import Experiment, Scale, experiments
from calibrant.training import checkpoint
from calibrant.training.settings import setting

ROOT = Path(__file__).resolve().parents[1]

FAST = {"engine": "compile+graph", "precision": "bfloat16"}
"""What a GPU run sets on top of its recipe unless `--set` says otherwise; the cell says so."""

RC_METHODS = ("table1/cifar10_cross_entropy", "table1/cifar10_smoothing", "table1/cifar10_l1", "table1/cifar10_focal")

PLAN: tuple[tuple[str, tuple[int, ...]], ...] = (
    *((f"rc/{name}", (seed,)) for seed in range(3) for name in (*RC_METHODS, "figure6/cifar10_inverse_focal_2")),
    *((f"rc/{name.replace('10_', '100_')}", (0,)) for name in (*RC_METHODS, "figure6/cifar10_inverse_focal_2")),
    *(
        (f"ds/table2/cifar10_vgg16_{name}", (0, 1, 2))
        for name in ("baseline", "smoothing", "mixup", "focal", "entropy")
    ),
    *((f"rc/table1/news20_{name}", (1, 2, 3, 4)) for name in ("cross_entropy", "smoothing", "l1", "focal")),
    ("rc/figure6/news20_inverse_focal_2", (0, 1, 2, 3, 4)),
)
"""Best value per GPU-minute first; results/PLAN.md gives the reasons."""

SPEED = {"resnet18": 42_600, "resnet32": 48_700, "vgg16": 50_000, "resnet50": 8_000, "mlp": 60_000, "text_cnn": 20_000}
"""Items per second at the papers' batches with captured steps, alone on an H200; the first two are measured."""

GUESS = 20_000  # of a network not in the table
SMOOTHED, DROPPED = 0.75, 0.85  # what is left of the speed with smoothing layers, with dropout: guesses
START = 40  # seconds from the start of a process to its first step, and for the evaluation at the end
TRAINING_SET = {"mnist": 50_000, "fashion_mnist": 50_000, "news20": 9_314}
POOLED_ITEMS = 12_500  # calibration and test, each item once a pass, without gradients but in float32


@dataclass(frozen=True)
class Job:
    experiment: Experiment
    seed: int
    scale: Scale

    def seconds(self, parallel: int, measured: dict[str, float]) -> float:
        """Guess of its time; processes share the GPU, which small networks leave half empty."""
        recipe = self.experiment.at(self.seed, self.scale)
        options = recipe.network.options
        alone = SPEED.get(recipe.network.name, GUESS) / max(1.0, parallel / 2)
        alone *= (SMOOTHED if options.get("smooth") else 1.0) * (DROPPED if options.get("dropout") else 1.0)
        speed = measured.get(str(recipe.plain()["network"]), alone)
        items = TRAINING_SET.get(recipe.data.name, 50_000 - sum((recipe.data.sizes or {"held out": 5_000}).values()))
        ensemble = self.experiment.ensemble
        passes = 0 if ensemble is None else int(ensemble.options.get("members", 50))
        training = items * (recipe.epochs - self.epochs_done()) * recipe.members
        return float(START + (training + POOLED_ITEMS * passes) / speed)

    def epochs_done(self) -> int:
        """Of a training that an earlier call on this machine began."""
        run = ROOT / "runs" / self.experiment.at(self.seed, self.scale).key()[:KEY_LENGTH] / "checkpoint"
        return max(checkpoint.epochs(run), default=0)


def settings_of(experiment: Experiment, words: Sequence[str] | None) -> dict[str, Any]:
    """What is set on top of its recipe. A text network's short steps are left eager: an epoch of it takes a second."""
    if words is not None:
        return dict(setting(s) for s in words)
    return {**FAST, "engine": "eager"} if experiment.recipe.network.name == "text_cnn" else dict(FAST)


def jobs(only: Sequence[str] | None, scale: Scale, words: Sequence[str] | None) -> Iterator[Job]:
    for pattern, seeds in PLAN:
        for seed in seeds:
            for experiment in experiments(pattern):
                if not only or experiment.name.startswith(tuple(only)):
                    yield Job(experiment.changed(settings_of(experiment, words)), seed, scale)


def stores() -> tuple[Store, Store]:
    """Where this machine files its cells, and what git already holds."""
    return Store(ROOT / "runs" / "store"), Store(ROOT / "results")


def cell_of(store: Store, job: Job) -> Cell | None:
    """The finished cell of exactly these settings, weight decay and engine included."""
    found = store.find(job.experiment, job.seed, job.scale)
    return found if found is not None and found.status == "done" else None


def one(name: str, seed: int, scale: Scale, a: argparse.Namespace) -> int:
    """One cell in this process, given up at the deadline (its training can go on in a later call)."""
    from calibrant.bench.measure import measure
    from calibrant.training.run import How

    def watch(epoch: int, validation: object) -> None:
        if time.time() > a.deadline:
            print(f"{name} seed {seed}: out of time after epoch {epoch}", flush=True)
            os._exit(75)

    [experiment] = experiments(name)
    overrides = settings_of(experiment, a.set)
    keep = seed in (a.keep_epochs or ())
    how = How(device=a.device, root=a.data_root, every=10, quiet=True, listen=watch, keep_epochs=keep)
    command = f"python benchmarks/gpu_runs.py --only {name} " + " ".join(f"--set {k}={v}" for k, v in overrides.items())
    cell = measure(
        experiment, seed, scale, stores()[0], ROOT / "runs", how, overrides=overrides, command=command.strip()
    )
    print(f"{name} seed {seed}: {cell.seconds:.0f} s, {json.dumps(cell.measured)}", flush=True)
    return 0


def run(a: argparse.Namespace) -> int:
    """Start jobs in order while they should fit, `parallel` at a time; then pack whatever is done."""
    mine, theirs = stores()
    a.deadline = time.time() + 60 * a.minutes
    waiting = [j for j in jobs(a.only, a.scale, a.set) if cell_of(mine, j) is None and cell_of(theirs, j) is None]
    if a.seeds is not None:
        waiting = [j for j in waiting if j.seed in a.seeds]
    print(f"{len(waiting)} cells to measure, {a.minutes} minutes, {a.parallel} at a time", flush=True)
    running: list[tuple[Job, subprocess.Popen[bytes]]] = []
    measured: dict[str, float] = {}
    while waiting or running:
        for job, process in running:
            if process.poll() == 0:
                if (cell := cell_of(mine, job)) is not None:
                    network = str(job.experiment.recipe.plain()["network"])
                    measured[network] = float(cell.extras["images_per_second"])
            elif process.poll() is not None:
                print(f"{job.experiment.name} seed {job.seed}: ended with {process.poll()}", flush=True)
        running = [(j, p) for j, p in running if p.poll() is None]
        left = a.deadline - time.time()
        if not running and not any(j.seconds(a.parallel, measured) < left for j in waiting):
            break
        for job in list(waiting):
            if len(running) < a.parallel and job.seconds(a.parallel, measured) < left:
                waiting.remove(job)
                running.append((job, start(job, a)))
        time.sleep(0.5)
    for job in waiting:
        print(
            f"not begun: {job.experiment.name} seed {job.seed} ({job.seconds(a.parallel, measured):.0f} s)", flush=True
        )
    if a.out is not None:
        print(*parcel.pack(mine, a.out).files, flush=True)
    return 0


def start(job: Job, a: argparse.Namespace) -> subprocess.Popen[bytes]:
    words = [sys.executable, __file__, "--one", job.experiment.name, "--seed", str(job.seed), "--scale", job.scale]
    words += ["--device", a.device, "--deadline", str(a.deadline)]
    if a.set is not None:
        words += ["--set", *a.set]
    if a.keep_epochs is not None:
        words += ["--keep-epochs", *map(str, a.keep_epochs)]
    if a.data_root is not None:
        words += ["--data-root", str(a.data_root)]
    return subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "4"})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--parallel", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", default="paper", choices=["smoke", "small", "paper"])
    parser.add_argument("--only", nargs="*", help="beginnings of experiments' names")
    parser.add_argument("--set", nargs="*", help="settings of every recipe, instead of captured steps in bf16")
    parser.add_argument("--out", type=Path, default=Path(os.environ["OUT"]) if "OUT" in os.environ else None)
    parser.add_argument("--list", action="store_true", help="what would run, in order, with the guess of its time")
    parser.add_argument("--unpack", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", nargs="*", type=int, help="of the plan's seeds, these only")
    parser.add_argument("--keep-epochs", nargs="*", type=int, help="the seeds whose every epoch is kept")
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--deadline", type=float, default=float("inf"), help=argparse.SUPPRESS)
    a = parser.parse_args(argv)
    if a.unpack is not None:
        print(parcel.unpack(a.unpack, Store(ROOT / "results")))
        return 0
    if a.one is not None:
        return one(a.one, a.seed, a.scale, a)
    if a.list:
        for job in jobs(a.only, a.scale, a.set):
            print(f"{job.experiment.name:<40} seed {job.seed}  {job.seconds(a.parallel, {}):6.0f} s")
        return 0
    return run(a)


if __name__ == "__main__":
    raise SystemExit(main())
