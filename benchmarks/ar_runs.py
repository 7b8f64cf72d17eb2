"""AR on one GPU, time-boxed: ResNet-29 v2 on CIFAR-10 by every method of Tables 3 and 5, levels by DDN, and Fig. 1.

    PYTHONPATH=src CALIBRANT_COMMIT=$(git rev-parse HEAD) \\
        python benchmarks/ar_runs.py --data-root DATA --minutes 9 --epochs 40 --batch 512 --out $OUT
    python benchmarks/gpu_runs.py --unpack FOLDER          # afterwards, here: cells → results/
    python benchmarks/ar_runs.py --smoke --device cpu      # digits, a minute on a CPU: does everything run?

Units, the most telling first: five vanilla trainings, robustness of the first one (training, validation, test), then
three seeds of AR-AdaLS, LS, AdaLS and mixup, AR-AdaLS of Ensemble, further seeds. A unit is begun only if it should end
in time, an unfinished one goes on in a later call on the same machine (runs/ar), and what is done is done. Then
`ar_measure` makes cells of whatever is there. `--epochs` and `--batch` squeeze the schedule; the rate grows with
√batch, α with the fewer epochs, and every cell says that it is not the paper's schedule. `--parallel 2` has two
processes take units from the one list.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from calibrant.data import Data, load
from calibrant.papers import experiments
from calibrant.train import distances
from calibrant.train.recipe import Recipe
from calibrant.train.recipes import RECIPES
from calibrant.train.run import How, train
from calibrant.train.run import load as load_run
from calibrant.train.settings import setting
from calibrant.types import Split

ROOT = Path(__file__).resolve().parents[1]
FAST = ("engine=graph", "precision=bfloat16")
SETTINGS = {  # a stand-in that runs everything on a CPU
    "data": {"name": "digits", "sizes": {"train": 300, "validation": 300, "calibration": 200, "test": 400}},
    "network": {"name": "mlp", "hidden": [64], "batch_norm": False},
    "augment": None,
    "batch": 64,
    "optimiser.lr": 1e-2,
    "channels_last": False,
}
SMOKE_LEVELS = 5
SPEED = 30_000  # images per second until one training has been timed
DDN_SPEED = 400  # items per second, likewise
CHECKPOINT_EVERY = 5
POLL = 1.0

VANILLA = "vanilla"
FIRST = [("train", VANILLA, s) for s in range(5)] + [("attack", VANILLA, 0)]
SINGLE = ("ar_adals", "smoothing", "adals", "mixup")
PLAN = (
    FIRST[:1] + FIRST[-1:] + [("train", m, 0) for m in SINGLE] + FIRST[1:-1]
    + [("train", m, s) for s in (1, 2) for m in SINGLE]
    + [("train", "ar_adals_of_ensemble", 0)]
    + [("train", m, s) for s in (3, 4) for m in SINGLE]
)  # fmt: skip
"""(what, method, seed) in order of value: one seed of all, Fig. 1's five runs, three seeds, lock-step, five seeds."""

MORE = [("train", m, s) for s in (0, 1, 2) for m in ("ar_adals_on_the_fly", "levels_4", "levels_16", "levels_1")]
"""With --more, after these: Table 4's question and Fig. 5's on CIFAR-10."""


class OutOfTime(Exception):
    """A training stopped at its time box; its checkpoint stands."""


@dataclass(frozen=True)
class Unit:
    """One training, or the attack on one."""

    what: str
    method: str
    seed: int
    recipe: Recipe
    runs: Path

    @property
    def name(self) -> str:
        return f"{self.what} {self.method} {self.seed}"

    @property
    def run(self) -> Path:
        return self.runs / f"{self.method}-{self.seed}-{self.recipe.key()[:8]}"

    def done(self) -> bool:
        if self.what == "train":
            return (self.run / "metrics.json").is_file()
        return all(p.is_file() for p in self.files())

    def files(self) -> list[Path]:
        splits = (Split.TRAIN, Split.VALIDATION, Split.TEST)
        return [self.run / distances.FOLDER / "ddn" / f"{s.value}.safetensors" for s in splits]

    def needs(self, units: Sequence[Unit]) -> list[Unit]:
        """What must be there before: the attacked network, and for AR-AdaLS its levels."""
        if self.what == "attack":
            return [u for u in units if (u.what, u.run) == ("train", self.run)]
        return [u for u in units if u.what == "attack"] if self.recipe.targets.name == "ar_adals" else []

    def seconds(self, data: Data, speed: float) -> float:
        if self.what == "attack":
            return sum(data[s].n for s in (Split.TRAIN, Split.VALIDATION, Split.TEST)) / DDN_SPEED
        begun = max((int(p.stem) for p in (self.run / "checkpoint").glob("*.json")), default=0)
        return 5 + data[Split.TRAIN].n * (self.recipe.epochs - begun) * self.recipe.members / speed


def recipe_of(method: str, seed: int, a: argparse.Namespace) -> Recipe:
    """The paper's recipe, squeezed as asked."""
    recipe = experiments(name_of(method))[0].recipe
    if a.smoke:
        recipe = recipe.with_settings(SETTINGS)
    changes: dict[str, Any] = dict(setting(s) for s in a.set)
    if a.batch is not None and a.batch != recipe.batch:
        changes |= {"batch": a.batch, "optimiser.lr": recipe.optimiser.lr * math.sqrt(a.batch / recipe.batch)}
    refresh = recipe.targets.options.get("refresh_after")
    if a.epochs is not None and a.epochs != recipe.epochs:
        if refresh:
            changes["targets.refresh_after"] = [max(1, round(e * a.epochs / recipe.epochs)) for e in refresh]
        alpha = recipe.targets.options.get("alpha")
        if alpha is not None:  # as far as the paper's epochs would take it
            changes["targets.alpha"] = alpha * recipe.epochs / a.epochs
        recipe = recipe.scaled(a.epochs)
    if a.smoke and method.startswith("ar_adals"):
        changes["targets.levels"] = SMOKE_LEVELS
    if a.smoke and recipe.members > 1:
        changes["members"] = 2
    return replace(recipe.with_settings(changes), seed=seed)


def name_of(method: str) -> str:
    """The experiment that a method's runs are filed under."""
    return f"ar/figure5/{method}" if method.startswith("levels_") else f"ar/table3/{method}"


def schedule_note(a: argparse.Namespace) -> str:
    """What a cell says about its schedule; empty for the paper's own."""
    paper = RECIPES["ar/cifar10_resnet29"]
    changed = []
    if a.epochs not in (None, paper.epochs):
        changed.append(
            f"{a.epochs} epochs instead of {paper.epochs} (milestones scaled, α × {paper.epochs / a.epochs:g})"
        )
    if a.batch not in (None, paper.batch):
        changed.append(f"batch {a.batch} instead of {paper.batch} (rate × {math.sqrt(a.batch / paper.batch):.3g})")
    if a.smoke:
        changed.append("digits and an MLP instead of CIFAR-10 and ResNet-29")
    return f"NOT the paper's schedule: {'; '.join(changed)}" if changed else ""


def plan(a: argparse.Namespace) -> list[Unit]:
    runs = a.runs / ("smoke" if a.smoke else "ar")
    seeds = range(a.seeds)
    wanted = [
        line for line in (*PLAN, *(MORE if a.more else ())) if line[2] in seeds or (line[1] == VANILLA and not a.smoke)
    ]
    if a.only is not None:  # AR-AdaLS needs the first vanilla run and its levels
        levels = any(m.startswith(("ar_adals", "levels_")) for m in a.only)
        wanted = [line for line in wanted if line[1] in a.only or (levels and line[1:] == (VANILLA, 0))]
    return [Unit(what, m, s, recipe_of(m, s, a), runs) for what, m, s in wanted]


def do(unit: Unit, units: Sequence[Unit], data: Data, a: argparse.Namespace) -> None:
    start = time.time()
    if unit.what == "attack":
        members = load_run(unit.run).members
        for split in (Split.TRAIN, Split.VALIDATION, Split.TEST):
            distances.measured(members, data, split, unit.run / distances.FOLDER, ruler="ddn", device=a.device)
        seconds = time.time() - start
        (unit.run / distances.FOLDER / "seconds.json").write_text(json.dumps({"ddn": seconds}), "utf-8")
        print(f"{unit.name}: {seconds:.1f} s", flush=True)
        return

    def watch(epoch: int, validation: object) -> None:
        if time.time() > a.deadline and epoch < unit.recipe.epochs:
            raise OutOfTime(f"{unit.name}: out of time after epoch {epoch}")

    attacked = [u.run for u in unit.needs(units)]
    how = How(
        a.device, root=a.data_root, every=CHECKPOINT_EVERY, quiet=True, listen=watch,
        levels=attacked[0] if attacked else None,
    )  # fmt: skip
    made = train(unit.recipe, unit.run, how, data)
    row = {k: made["metrics"]["test"][k] for k in ("accuracy", "nll", "ece", "auroc")}
    print(f"{unit.name}: {made['train_seconds']:.1f} s, {made['images_per_second']:,.0f} img/s {row}", flush=True)


def work(a: argparse.Namespace) -> None:
    """Take units from the list, in its order, until none is left that should end in time."""
    units = plan(a)
    first = units[0].recipe
    data = load(first.data.name, root=a.data_root, seed=first.data.seed, sizes=first.data.sizes)
    while True:
        left = a.deadline - time.time()
        open_ = [u for u in units if not u.done()]
        ready = [u for u in open_ if all(n.done() for n in u.needs(units))]
        mine = next((u for u in ready if u.seconds(data, speed_of(units)) < left and claimed(u)), None)
        if mine is None:
            if not any(u.needs(units) and u not in ready for u in open_) or left < 10 or a.parallel == 1:
                for u in open_:
                    print(f"not done: {u.name} ({u.seconds(data, speed_of(units)):.0f} s)", flush=True)
                return
            time.sleep(POLL)  # another process is at what these wait for
            continue
        try:
            do(mine, units, data, a)
        except OutOfTime as stop:
            print(stop, flush=True)
        finally:
            (lock(mine)).unlink(missing_ok=True)


def lock(unit: Unit) -> Path:
    return unit.runs / f"{unit.what}-{unit.run.name}.lock"


def claimed(unit: Unit) -> bool:
    """Whether this process now owns the unit; a lock whose process is gone is taken over."""
    unit.runs.mkdir(parents=True, exist_ok=True)
    path = lock(unit)
    if path.is_file() and not Path(f"/proc/{path.read_text() or 0}").exists():
        path.unlink(missing_ok=True)
    try:
        with path.open("x") as stream:
            stream.write(str(os.getpid()))
        return True
    except FileExistsError:
        return False


def speed_of(units: Sequence[Unit]) -> float:
    """Images per second of the trainings that ended, else a guess."""
    found = [
        json.loads((u.run / "metrics.json").read_text("utf-8"))["images_per_second"]
        for u in units
        if u.what == "train" and u.done()
    ]
    return sorted(found)[len(found) // 2] if found else SPEED


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--reserve", type=float, default=None, help="seconds kept for measuring; default 0.3 of all")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, help="squeeze the schedule into so many; default the paper's 200")
    parser.add_argument("--batch", type=int, help="default the paper's 256")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", help="methods")
    parser.add_argument("--more", action="store_true", help="also levels on the fly, and other numbers of levels")
    parser.add_argument("--set", nargs="*", default=None, help=f"settings of every recipe; default {' '.join(FAST)}")
    parser.add_argument("--corruptions", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--shifts", nargs="*", help="only these, as fog-3; default all 19 × 5")
    parser.add_argument("--keep-logits", action="store_true", help="test logits of every run into the output as well")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    parser.add_argument("--out", type=Path, default=Path(os.environ["OUT"]) if "OUT" in os.environ else None)
    parser.add_argument("--smoke", action="store_true", help="digits-size stand-ins: a minute on a CPU")
    parser.add_argument("--measure-only", action="store_true", help="train nothing, make cells of what is there")
    parser.add_argument("--list", action="store_true", help="the units in order, and the guess of their time")
    parser.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args(argv)
    a.set = list(FAST if a.set is None and not a.smoke and a.device == "cuda" else a.set or ())
    if a.smoke:
        a.epochs, a.batch, a.seeds = a.epochs or 20, None, min(a.seeds, 2)
    if a.list:
        for unit in plan(a):
            images = 45_000 * unit.recipe.epochs * unit.recipe.members
            guess = images / SPEED if unit.what == "train" else 60_000 / DDN_SPEED
            print(f"{unit.name:<32} {'done' if unit.done() else f'{guess:6.0f} s'}")
        return 0
    end = time.time() + 60 * a.minutes
    if not a.worker:
        a.deadline = end - (0.3 * 60 * a.minutes if a.reserve is None else a.reserve)
    if a.worker or (a.parallel == 1 and not a.measure_only):
        work(a)
    elif not a.measure_only:
        words = [sys.executable, __file__, *(sys.argv[1:] if argv is None else argv)]
        words += ["--worker", "--deadline", str(a.deadline)]
        for process in [subprocess.Popen(words) for _ in range(a.parallel)]:
            process.wait()
    if not a.worker:
        from benchmarks import ar_measure

        ar_measure.measure(plan(a), a, end)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
