"""AR on one GPU, time-boxed: ResNet-29 v2 on CIFAR-10 by every method of Tables 3 and 5, levels by DDN, Fig. 1, 2, 5.

    PYTHONPATH=src CALIBRANT_COMMIT=$(git rev-parse HEAD) python benchmarks/ar_runs.py --data-root DATA \\
        --minutes 9 --go-on --parallel 4 --epochs 30 --batch 512 --members 3 --pgd 3 --shift-items 5000 --out $OUT
    calibrant bench unpack FOLDER                          # afterwards, here: cells → results/
    python benchmarks/ar_runs.py --smoke --device cpu      # digits, a minute on a CPU: does everything run?

`ar_units` holds the list and its order. Processes take units from it, each the first that it can begin; one that
fails is said and left, and whoever waited for it with it. A unit is begun only if it should end in time, unless
`--go-on`: then a later call with the same settings goes on where this one stopped (runs/ar). Right after its training a
run is measured on the clean test images, the 19 × 5 corruptions and CIFAR-100 (`ar_measure`); at the end `ar_cells`
makes cells and a table of whatever is there. `--epochs` and `--batch` squeeze the schedule; the rate grows with
√batch, α with the fewer epochs, and every cell says that it is not the paper's schedule.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from benchmarks.ar_units import ATTACKED, MEASURING, SMOKE_SEEDS, Unit, cost, pace, plan, refresh_seconds, refreshes
from benchmarks.locks import claimed as locked
from benchmarks.locks import released, taken
from benchmarks.workers import ROOT, OutOfTime
from calibrant.data import Data, load
from calibrant.files import atomic
from calibrant.papers.ar import MEMBERS
from calibrant.training import distances
from calibrant.training.run import How, train
from calibrant.training.run_folder import load as load_run

FAST = ("engine=graph", "precision=bfloat16")
CHECKPOINT_EVERY = 3
POLL = 0.5
CELLS = 15  # seconds that cells, table and packing may take at the end
WORTH_BEGINNING = 12  # seconds: a few epochs until a checkpoint
RESPAWNS = 3
PATIENCE = 3  # seconds
BROKEN = 3  # exit status of a process whose GPU context is lost


def do(unit: Unit, units: Sequence[Unit], data: Data, a: argparse.Namespace) -> None:
    from benchmarks import ar_measure

    start = time.time()
    if unit.what == "measure":
        ar_measure.measure(unit, data, a)
    elif unit.what == "pool":
        ar_measure.measure_pool(unit, a)
    elif unit.what == "attack":
        attack(unit, data, a)
    else:
        made = trained(unit, units, data, a)
        row = {k: round(made["metrics"]["test"][k], 4) for k in ("accuracy", "nll", "ece", "auroc")}
        say(a, f"{unit.name}: {time.time() - start:.1f} s, {made['images_per_second']:,.0f} img/s {row}")
        return
    say(a, f"{unit.name}: {time.time() - start:.1f} s")


def attack(unit: Unit, data: Data, a: argparse.Namespace) -> None:
    start = time.time()
    members = load_run(unit.run).members
    for split in ATTACKED:
        distances.measured(members, data, split, unit.run / distances.FOLDER, ruler="ddn", device=a.device)
    speed = sum(data[s].n for s in ATTACKED) / (time.time() - start)
    atomic.write_text(unit.run / distances.FOLDER / "pace.json", json.dumps({"items_per_second": speed}))


def trained(unit: Unit, units: Sequence[Unit], data: Data, a: argparse.Namespace) -> dict[str, Any]:
    last: list[float] = []  # when the epoch before ended; the first one also holds the start

    def watch(epoch: int, validation: object) -> None:
        now = time.time()
        took = now - last[-1] if last else 0.0
        last.append(now)
        if epoch + 1 in refreshes(unit.recipe):
            took += refresh_seconds(data, pace(units, a.parallel))
        # the next epoch would end too late; what the last checkpoint does not hold is trained again
        if now + took > a.deadline and epoch < unit.recipe.epochs:
            raise OutOfTime(f"{unit.name}: out of time after epoch {epoch}")

    attacked = [u.run for u in unit.needs(units)]
    how = How(
        a.device, root=a.data_root, every=1 if cost(unit.recipe) > 1 else CHECKPOINT_EVERY, quiet=True, listen=watch,
        levels=attacked[0] if attacked else None,
    )  # fmt: skip
    return train(unit.recipe, unit.run, how, data)


# -- one process -----------------------------------------------------------------------------------------------------


def work(a: argparse.Namespace) -> int:
    """Take units from the list, in its order, until none is left that can be begun."""
    if a.worker:
        signal.signal(signal.SIGTERM, _leave)
    units = plan(a)
    first = units[0].recipe
    data = load(first.data.name, root=a.data_root, seed=first.data.seed, sizes=first.data.sizes)
    while True:
        open_ = [u for u in units if not u.done() and not mark(u, "failed").is_file()]
        can = [u for u in open_ if ready(u, units) and not taken(mark(u, "lock"))]
        should = [u for u in can if fits(u, units, data, a)]
        if not should and a.go_on and a.deadline - time.time() > WORTH_BEGINNING:
            should = [u for u in can if u.what == "train"]
        mine = next((u for u in should if claimed(u)), None)
        if mine is None:
            if time.time() > a.deadline or not any(taken(mark(u, "lock")) for u in open_):
                return 0
            time.sleep(POLL)  # another process is at what these wait for
            continue
        try:
            do(mine, units, data, a)
        except OutOfTime as stop:
            say(a, str(stop))
            mark(mine, "failed").touch()  # not again in this call
        except Exception as error:
            mark(mine, "failed").touch()
            say(a, f"{mine.name} FAILED: {error!r}\n{traceback.format_exc()}")
            if "CUDA" in f"{error!r}":  # the context may be lost: a fresh process goes on
                return BROKEN
        finally:
            released(mark(mine, "lock"))


def _leave(number: int, frame: FrameType | None) -> None:
    """Out of whatever is being done, with the GPU's context closed in order: others share the device."""
    raise SystemExit(0)


def ready(unit: Unit, units: Sequence[Unit]) -> bool:
    return all(n.done() for n in unit.needs(units))


def fits(unit: Unit, units: Sequence[Unit], data: Data, a: argparse.Namespace) -> bool:
    left: float = a.deadline - time.time()
    if unit.what in ("measure", "pool"):  # short, and allowed into the reserve
        return bool(left + a.reserve - CELLS > MEASURING / 2)
    return unit.seconds(data, pace(units, a.parallel)) < left


def mark(unit: Unit, kind: str) -> Path:
    """`lock`: a process is at it; `failed`: not to be begun again in this call."""
    suffix = f"-{len(unit.pooled)}" if unit.pooled else ""
    return unit.runs / f"{unit.what}-{unit.run.name}{suffix}.{kind}"


def claimed(unit: Unit) -> bool:
    """Whether this process now owns the unit."""
    if not locked(mark(unit, "lock")):
        return False
    if unit.done():  # by a process that let go of it since we looked
        released(mark(unit, "lock"))
        return False
    return True


def say(a: argparse.Namespace, text: str) -> None:
    """Printed, and kept for the log that leaves with the cells."""
    line = f"[{time.time() - a.start:6.1f} s] {text}"
    print(line, flush=True)
    a.runs.mkdir(parents=True, exist_ok=True)
    with (a.runs / "ar-log.txt").open("a", encoding="utf-8") as stream:
        stream.write(line + "\n")


# -- all of them -----------------------------------------------------------------------------------------------------


def run(a: argparse.Namespace, words: Sequence[str]) -> None:
    """Start the processes, replace one that dies, end all in time."""
    units = plan(a)
    for unit in units:  # of an earlier call
        mark(unit, "failed").unlink(missing_ok=True)
    if a.parallel == 1:
        work(a)
        return
    command = [sys.executable, __file__, *words, "--worker", "--deadline", str(a.deadline), "--start", str(a.start)]
    command += ["--reserve", str(a.reserve)]
    threads = max(1, min(4, (os.cpu_count() or 1) // a.parallel))
    environment = {"OMP_NUM_THREADS": str(threads)} | dict(os.environ)
    processes = [subprocess.Popen(command, env=environment) for _ in range(a.parallel)]
    respawns = RESPAWNS
    while any(p.poll() is None for p in processes):
        time.sleep(POLL)
        for i, process in enumerate(processes):
            if process.poll() in (None, 0):
                continue
            for unit in units:  # whoever crashes a process is not tried again
                held = mark(unit, "lock")
                if held.is_file() and held.read_text() == str(process.pid):
                    say(a, f"{unit.name} FAILED: its process ended with {process.poll()}")
                    mark(unit, "failed").touch()
                    if locked(held):
                        released(held)
            if respawns and time.time() < a.deadline:
                respawns -= 1
                processes[i] = subprocess.Popen(command, env=environment)
        if time.time() > a.deadline + a.reserve - CELLS:
            late = [p for p in processes if p.poll() is None]
            for process in late:
                say(a, f"process {process.pid} is ended: no time left")
                process.terminate()
            for process in late:
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
            return


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    a = parser().parse_args(words)
    a.set = list(FAST if a.set is None and not a.smoke and a.device == "cuda" else a.set or ())
    if a.smoke:
        a.epochs, a.batch, a.seeds = a.epochs or 20, None, min(a.seeds, SMOKE_SEEDS)
    if a.list:
        speed = pace(plan(a), a.parallel)
        for unit in plan(a):
            items = 45_000 * unit.recipe.epochs * unit.recipe.members * cost(unit.recipe) / speed.images
            attacked = 47_500 * len(refreshes(unit.recipe)) / speed.ddn
            guess = {"train": items + attacked, "attack": 60_000 / speed.ddn}.get(unit.what, 0)
            print(f"{unit.name:<36} {'done' if unit.done() else f'{guess / a.parallel:6.0f} s of the GPU'}")
        return 0
    if a.worker:
        return work(a)
    a.start = time.time()
    a.reserve = min(a.reserve, 30 * a.minutes)
    a.deadline = a.start + 60 * a.minutes - a.reserve
    if not a.measure_only:
        run(a, words)
    from benchmarks import ar_cells

    ar_cells.file_all(plan(a), a)
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--data-root", type=Path)
    made.add_argument("--minutes", type=float, default=9.0)
    made.add_argument("--reserve", type=float, default=40.0, help="seconds kept for measuring and for cells")
    made.add_argument("--go-on", action="store_true", help="begin what will not end in time: a later call goes on")
    made.add_argument("--parallel", type=int, default=1, help="processes that share the GPU")
    made.add_argument("--device", default="cuda")
    made.add_argument("--epochs", type=int, help="squeeze the schedule into so many; default the paper's 200")
    made.add_argument("--batch", type=int, help="default the paper's 256")
    made.add_argument("--members", type=int, default=MEMBERS, help="of AR-AdaLS of Ensemble")
    made.add_argument("--pgd", type=int, help="steps of CCAT's attack; default the paper's 10")
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--only", nargs="*", help="methods, as ccat, or seeds of them, as ccat:1")
    made.add_argument("--set", nargs="*", default=None, help=f"settings of every recipe; default {' '.join(FAST)}")
    made.add_argument("--corruptions", action=argparse.BooleanOptionalAction, default=True)
    made.add_argument("--shifts", nargs="*", help="only these, as fog-3; default all 19 × 5")
    made.add_argument("--shift-items", type=int, help="test images that are corrupted, the first so many; default all")
    made.add_argument("--keep-logits", action="store_true", help="test logits of every run into the output as well")
    made.add_argument("--runs", type=Path, default=ROOT / "runs")
    made.add_argument("--out", type=Path, default=Path(os.environ["OUT"]) if "OUT" in os.environ else None)
    made.add_argument("--smoke", action="store_true", help="digits-size stand-ins: a minute on a CPU")
    made.add_argument("--measure-only", action="store_true", help="train nothing, make cells of what is there")
    made.add_argument("--list", action="store_true", help="the units in order, and the guess of their time")
    made.add_argument("--deadline", type=float, default=0.0, help=argparse.SUPPRESS)
    made.add_argument("--start", type=float, default=0.0, help=argparse.SUPPRESS)
    made.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return made


if __name__ == "__main__":
    raise SystemExit(main())
