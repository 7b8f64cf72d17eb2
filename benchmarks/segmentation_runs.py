"""SS Tables 2 and E.4 in a time box: U-Net on CamVid × MC dropout × spatial smoothing, each with and without temporal.

    PYTHONPATH=src CALIBRANT_COMMIT=$(git rev-parse HEAD) \\
        python -m benchmarks.segmentation_runs --data-root DATA --epochs 40 --minutes 4 --parallel 4 --out $OUT
    python -m benchmarks.segmentation_runs --list                 # the four networks, with guesses
    python -m benchmarks.segmentation_runs --smoke                # random frames on the CPU: does it run?
    python -m benchmarks.smoothing_runs --gather FOLDER …          # afterwards, here: cells → results/

`--epochs` and `--batch` squeeze the paper's 130 epochs of batch 3, and every cell says so (scale `40of130`). The four
networks are units of `workers`: begun if they should end in time, going on in a later call. Measured on the validation
part, one video of 101 frames at 15 Hz, a frame at a time: each network as it is (MC dropout: 50 passes a frame) and
smoothed in time (one pass a frame, of MC dropout another member each time); and on the test part as it is. Intervals
draw blocks of successive frames. While training, only a few frames are watched: all of them an epoch would cost as
much as the epoch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from benchmarks.segmentation_pack import BLOCK, difference, kept, pack
from benchmarks.smoothing_units import FAST, VARIANTS
from benchmarks.workers import ROOT, Foldered, begun, spawn, squeezed, trained, work
from calibrant.bench.store import Cell, Store
from calibrant.data import Data, load
from calibrant.data.batches import Batches
from calibrant.data.records import Part
from calibrant.ensembles import MCDropout, TemporalSmoothing
from calibrant.ensembles.ensemble import evaluating
from calibrant.files import atomic
from calibrant.files.paths import visible
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.frames import Frames
from calibrant.papers import AS_TRAINED, Experiment, experiments
from calibrant.papers.experiment import scale_of, schedule_note
from calibrant.papers.ss_camvid import TEMPORAL
from calibrant.training.environment import environment
from calibrant.training.recipe import Recipe, digest
from calibrant.training.run import How
from calibrant.training.run_folder import load as load_run
from calibrant.training.settings import setting
from calibrant.types import Report, Split, jsonable

WATCHED = 4
"""Frames of the validation part that are looked at after each epoch."""
RESAMPLING = Resampling(seed=0, replicates=1000)
SPEED, MEASURING = 600.0, {False: 15.0, True: 45.0}
"""Frames a second of a training alone, and seconds of measuring without and with MC dropout: guesses."""
FRAMES = 367

Predictor = Callable[[Tensor], Tensor]


class Footage:
    """A part of the data, frame after frame, on the device."""

    def __init__(self, data: Data, split: Split, device: torch.device, *, limit: int | None, bfloat16: bool) -> None:
        part = data[split]
        kept = torch.arange(min(part.n, limit or part.n))
        options: dict[str, Any] = {"mean": data.mean, "std": data.std, "channels_last": True}
        self.batches = Batches(part.take(kept, split), 1, device=device, **options)
        self.device, self.bfloat16 = device, bfloat16

    def measured(self, predictor: Predictor) -> Frames:
        """Every frame's logits [H, W, K] from the predictor, into sums."""
        frames = Frames()
        for x, y, _ in self.batches:
            with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.bfloat16):
                logits = predictor(x)
            frames.add(logits[0].float(), y[0])
        return frames


def variants(model: nn.Module, video: Footage, members: int, seed: int) -> dict[str, Frames]:
    """The rows of Table E.4 that one network has: as it is, as MC dropout, smoothed in time."""
    with evaluating(model) as network:
        found = {AS_TRAINED: video.measured(network)}
    if members == 1:
        stream = TemporalSmoothing(model, class_axis=-1)
    else:
        dropout = MCDropout(model, members=members, seed=seed)
        found["dropout"] = video.measured(partial(dropout, class_axis=-1))
        stream = TemporalSmoothing(dropout, class_axis=-1)  # member t mod M at frame t
    found[TEMPORAL] = video.measured(lambda x: stream(x, stream="video"))
    return found


@dataclass(frozen=True)
class Unit(Foldered):
    """One network: its training, and its rows of Tables E.4 and 2."""

    experiment: Experiment
    seed: int
    recipe: Recipe
    a: argparse.Namespace
    prefix = "seg"

    @property
    def name(self) -> str:
        return f"{self.experiment.row} seed {self.seed}"

    @property
    def scale(self) -> str:
        return "smoke" if self.a.smoke else scale_of(self.recipe, self.experiment.recipe)

    @property
    def members(self) -> int:
        return int(self.a.members) if self.experiment.ensemble is not None else 1

    @cached_property
    def settings(self) -> dict[str, Any]:
        recipe = self.recipe.content()
        return {"recipe": recipe, "members": self.members, "frames": self.a.frames, "block": BLOCK}

    def done(self) -> bool:
        path = self.folder / "measured.json"
        return path.is_file() and json.loads(path.read_text("utf-8"))["key"] == digest(self.settings)

    def seconds(self) -> float:
        left = 0 if (self.folder / "metrics.json").is_file() else self.recipe.epochs - begun(self.folder)
        ended = [json.loads(p.read_text("utf-8")) for p in visible(self.a.runs, "seg-*/metrics.json")]
        shared = 1.0 if self.a.parallel == 1 else 2.0 / self.a.parallel
        speed = ended[0]["images_per_second"] if ended else SPEED * shared
        return left * (6 if self.a.smoke else FRAMES) / speed + MEASURING[self.members > 1] + 5


def plan(a: argparse.Namespace) -> list[Unit]:
    """Seed after seed, the four networks."""
    units = []
    for seed in a.seeds:
        for variant in a.only if a.only is not None else VARIANTS:
            [e] = experiments(f"ss/table_e4/camvid_unet{variant}")
            recipe = replace(squeezed(e.recipe, a.epochs, a.batch), seed=seed)
            units.append(Unit(e, seed, recipe.with_settings(dict(setting(s) for s in a.set)), a))
    return units


class Measuring:
    """What one process needs for its units: device and data."""

    def __init__(self, a: argparse.Namespace) -> None:
        self.a = a
        kind = ("cuda" if torch.cuda.is_available() else "cpu") if a.device == "auto" else a.device
        self.device = torch.device(kind)
        self.data = random_frames() if a.smoke else load("camvid", root=a.data_root)

    def __call__(self, unit: Unit) -> None:
        data, a, e = self.data, self.a, unit.experiment
        few = data[Split.VALIDATION].take(torch.arange(WATCHED), Split.VALIDATION)
        watched = replace(data, splits={Split.TRAIN: data[Split.TRAIN], Split.VALIDATION: few})
        how = How(device=self.device.type, root=a.data_root)
        made = trained(unit.recipe, unit.folder, watched, how, a.deadline)
        start = time.time()
        reports, extras, found = self.measured(unit)
        extras |= {k: made[k] for k in ("epochs", "images_per_second")} | {"parallel": a.parallel}
        where = environment(self.device)
        cell = Cell(
            experiment=e.name, seed=unit.seed, scale=unit.scale, key=digest(unit.settings), status="done",
            settings=unit.settings, measured={v: {m: x.value for m, x in row.items()} for v, row in reports.items()},
            intervals={v: {m: (x.low, x.high) for m, x in row.items()} for v, row in reports.items()},
            note="; ".join(filter(None, [e.note, schedule_note(unit.recipe, e.recipe)])), seconds=made["train_seconds"],
            device=where["device"], environment=where, commit=where["commit"], command=a.command, extras=extras,
        )  # fmt: skip
        Store(a.cells).write(cell)
        kept(found, unit.folder)
        atomic.write_text(unit.folder / "measured.json", json.dumps({"key": digest(unit.settings)}))
        names = ("nll", "accuracy", "ece", "consistency")
        said = {v: {m: row[m] for m in names} for v, row in cell.measured.items()}
        print(
            f"{unit.name}: {cell.seconds:.0f} s at {made['images_per_second']:,.0f} frames/s, measured in "
            f"{time.time() - start:.0f} s {json.dumps(jsonable(said))}",
            flush=True,
        )

    def measured(self, unit: Unit) -> tuple[dict[str, Report], dict[str, Any], dict[str, Frames]]:
        """The rows of Table E.4 on the video, and the network as it is on the test part, if there is time."""
        model: Any = load_run(unit.folder).members[0]
        model.to(self.device, memory_format=torch.channels_last)
        bfloat16, drop = unit.recipe.precision == "bfloat16", unit.members > 1
        limit = self.a.frames
        video = Footage(self.data, Split.VALIDATION, self.device, limit=limit, bfloat16=bfloat16)
        found = variants(model, video, unit.members, unit.seed)
        reports = {v: f.report(resampling=RESAMPLING, block=BLOCK) for v, f in found.items()}
        base = "dropout" if drop else AS_TRAINED
        extras: dict[str, Any] = {
            "temporal_against_none": difference(found[base].units(1)["pixels"], found[TEMPORAL].units(1)["pixels"]),
            "frames": len(found[base].rows),
            "auroc_bound": reports[base].extras["auroc_bound"],
        }
        if time.time() < self.a.deadline:
            test = Footage(self.data, Split.TEST, self.device, limit=limit, bfloat16=bfloat16)
            predictor: Any = evaluated(model)
            if drop:
                predictor = partial(MCDropout(model, members=unit.members, seed=unit.seed), class_axis=-1)
            row = test.measured(predictor).report(resampling=RESAMPLING)
            # without consistency: its frames are a second apart
            extras["test"] = {m: e.to_dict() for m, e in row.items() if m != "consistency"}
        return reports, extras, found


def evaluated(model: nn.Module) -> Predictor:
    def network(x: Tensor) -> Tensor:
        with evaluating(model) as f:
            out: Tensor = f(x)
        return out

    return network


def random_frames() -> Data:
    """A few small frames of noise, for --smoke."""
    g = torch.Generator().manual_seed(0)

    def part(n: int, split: Split) -> Part:
        x = torch.randint(0, 256, (n, 3, 24, 32), generator=g, dtype=torch.uint8)
        y = torch.randint(-1, 4, (n, 24, 32), generator=g)
        return Part(x, y, torch.arange(n), split)

    splits = {Split.TRAIN: part(6, Split.TRAIN), Split.VALIDATION: part(24, Split.VALIDATION)}
    splits[Split.TEST] = part(4, Split.TEST)
    return Data("frames", splits, ("a", "b", "c", "d"), (3, 24, 32), (0.5,) * 3, (0.25,) * 3)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--epochs", type=int, help="squeeze the 130 epochs into these")
    parser.add_argument("--batch", type=int, help="default the paper's 3; the rate goes with its root")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--reserve", type=float, default=10.0, help="seconds kept for differences and packing")
    parser.add_argument("--parallel", type=int, default=1, help="processes")
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--frames", type=int, help="of each part; by default all")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, help="some of the four networks, by suffix")
    parser.add_argument("--set", nargs="*", default=list(FAST), help="settings of every recipe")
    parser.add_argument("--runs", type=Path, help="default runs/; --smoke: OUT/runs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("segmentation-out"))
    parser.add_argument("--list", action="store_true", help="the units in order, and the guess of their time")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--deadline", type=float, help=argparse.SUPPRESS)
    a = parser.parse_args(argv)
    squeeze = "".join(f" --{k} {v}" for k in ("epochs", "batch") if (v := vars(a)[k]))
    a.command = f"python -m benchmarks.segmentation_runs{squeeze} --set {' '.join(a.set)}"
    if a.smoke:
        a.set, a.epochs, a.members, a.frames, a.device = ["network.width=8"], a.epochs or 1, 2, 12, "cpu"
    a.runs = a.runs or (a.out / "runs" if a.smoke else ROOT / "runs")
    a.cells = a.runs / "seg-cells"
    if a.list:
        for unit in plan(a):
            state = "done" if unit.done() else f"{unit.seconds():6.0f} s"
            print(f"{unit.name:<40} {unit.recipe.epochs:>4} epochs {state}")
        return 0
    worker = a.deadline is not None
    a.deadline = a.deadline or time.time() + 60 * a.minutes - a.reserve
    if worker or a.parallel == 1:
        work(plan(a), Measuring(a), a.deadline)
    else:
        words = [*(sys.argv[1:] if argv is None else argv), "--deadline", repr(a.deadline)]
        print(f"workers ended with {spawn('benchmarks.segmentation_runs', words, a.parallel)}", flush=True)
    if not worker:
        for unit in (u for u in plan(a) if not u.done()):
            print(f"not done: {unit.name} ({unit.seconds():.0f} s)", flush=True)
        pack([(u.experiment, u.seed, u.scale, u.folder, digest(u.settings)) for u in plan(a) if u.done()], a)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
