"""SS Tables 2 and E.4 in a time box: U-Net on CamVid × MC dropout × spatial smoothing, each with and without temporal.

    PYTHONPATH=src CALIBRANT_COMMIT=$(git rev-parse HEAD) \\
        python -m benchmarks.segmentation_runs --data-root DATA --seeds 0 --epochs 30 --minutes 9 --out $OUT
    python -m benchmarks.segmentation_runs --smoke                # random frames on the CPU: does it run?
    python -m benchmarks.segmentation_runs --gather FOLDER …       # afterwards, here: cells → results/

`--epochs` squeezes the 130 of the paper, and every cell says so (scale `30of130`). Measured on the validation part, one
video of 101 frames at 15 Hz, a frame at a time: each network as it is (MC dropout: 50 passes a frame) and smoothed in
time (one pass a frame, of MC dropout another member each time); and on the test part as it is. Intervals draw blocks of
successive frames. While training, only a few frames are watched: all of them an epoch would cost as much as the epoch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from benchmarks.smoothing_runs import FAST, ROOT, VARIANTS, OutOfTime, TimeBox, gather
from calibrant.bench.store import Cell
from calibrant.data import Data
from calibrant.data.batches import Batches
from calibrant.data.records import Part
from calibrant.ensembles import MCDropout, TemporalSmoothing
from calibrant.ensembles.ensemble import evaluating
from calibrant.metrics.bootstrap import draw
from calibrant.metrics.conventions import Resampling
from calibrant.metrics.frames import Frames
from calibrant.papers import AS_TRAINED, Experiment, experiments
from calibrant.papers.ss_camvid import TEMPORAL
from calibrant.train.environment import environment
from calibrant.train.recipe import digest
from calibrant.train.run import load as load_run
from calibrant.types import Report, Split, jsonable

WATCHED = 4
"""Frames of the validation part that are looked at after each epoch."""
BLOCK = 15
"""Successive frames that an interval draws together: a second at 15 Hz."""
RESAMPLING = Resampling(seed=0, replicates=1000)

Predictor = Callable[[Tensor], Tensor]


class Footage:
    """A part of the data, frame after frame, on the device."""

    def __init__(self, data: Data, split: Split, device: torch.device, *, limit: int | None, bfloat16: bool) -> None:
        part = data[split]
        kept = torch.arange(min(part.n, limit or part.n))
        options = {"mean": data.mean, "std": data.std, "channels_last": True}
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
        stream = TemporalSmoothing(model)
    else:
        dropout = MCDropout(model, members=members, seed=seed)
        found["dropout"] = video.measured(dropout)
        stream = TemporalSmoothing(dropout)  # member t mod M at frame t
    found[TEMPORAL] = video.measured(lambda x: stream(x, stream="video"))
    return found


def difference(a: Frames, b: Frames) -> dict[str, Any]:
    """NLL of b − NLL of a, on the same frames: blocks of frames drawn together, percentiles."""
    sums = [torch.stack([row.pixels for row in f.rows]) for f in (a, b)]
    blocks = torch.arange(len(sums[0])) // BLOCK
    joined = [torch.zeros(int(blocks[-1]) + 1, 3, dtype=torch.float64).index_add_(0, blocks, s) for s in sums]
    w = draw(len(joined[0]), 2000, torch.Generator().manual_seed(0)).double()
    means = [(w @ s[:, 2]) / (w @ s[:, 0]) for s in joined]
    low, high = (means[1] - means[0]).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    value = float(sums[1][:, 2].sum() / sums[1][:, 0].sum() - sums[0][:, 2].sum() / sums[0][:, 0].sum())
    return {"nll": value, "low": low, "high": high, "interval": f"blocks of {BLOCK} frames resampled in pairs"}


def measure(box: TimeBox, experiment: Experiment, seed: int) -> tuple[Cell, dict[str, Frames]]:
    recipe, a = box.recipe(experiment, seed), box.a
    data = random_frames() if a.smoke else box.loaded(recipe)
    part = data[Split.VALIDATION]
    watched = {Split.TRAIN: data[Split.TRAIN], Split.VALIDATION: part.take(torch.arange(WATCHED), Split.VALIDATION)}
    run, made = box.trained(experiment, recipe, seed, replace(data, splits=watched))
    model = load_run(run).members[0].to(box.device, memory_format=torch.channels_last)
    bfloat16, drop = recipe.precision == "bfloat16", experiment.ensemble is not None
    members = a.members if drop else 1
    video = Footage(data, Split.VALIDATION, box.device, limit=a.frames, bfloat16=bfloat16)
    found = variants(model, video, members, seed)
    reports: dict[str, Report] = {v: f.report(resampling=RESAMPLING, block=BLOCK) for v, f in found.items()}
    base = "dropout" if drop else AS_TRAINED
    extras: dict[str, Any] = {
        "epochs": made["epochs"],
        "images_per_second": made["images_per_second"],
        "temporal_against_none": difference(found[base], found[TEMPORAL]),
        "frames": len(found[base].rows),
        "auroc_bound": reports[base].extras["auroc_bound"],
    }
    if box.left() > 0:
        test = Footage(data, Split.TEST, box.device, limit=a.frames, bfloat16=bfloat16)
        predictor: Any = MCDropout(model, members=members, seed=seed) if drop else evaluated(model)
        row = test.measured(predictor).report(resampling=RESAMPLING)
        extras["test"] = {m: e.to_dict() for m, e in row.items() if m != "consistency"}  # its frames are a second apart
    settings = {"recipe": {k: v for k, v in recipe.plain().items() if k not in ("name", "about")}}
    settings |= {"members": members, "frames": len(found[base].rows), "block": BLOCK}
    original = experiment.recipe.epochs
    scale = "smoke" if a.smoke else "paper" if recipe.epochs == original else f"{recipe.epochs}of{original}"
    scaled = "" if scale == "paper" else f"; schedule squeezed into {recipe.epochs} of {original} epochs"
    where = environment(box.device)
    cell = Cell(
        experiment=experiment.name, seed=seed, scale=scale, key=digest(settings), status="done", settings=settings,
        measured={v: {m: e.value for m, e in row.items()} for v, row in reports.items()},
        intervals={v: {m: (e.low, e.high) for m, e in row.items()} for v, row in reports.items()},
        reported=experiment.reported, note=experiment.note + scaled, seconds=made["train_seconds"],
        device=where["device"], environment=where, commit=where["commit"], command=a.command, extras=extras,
    )  # fmt: skip
    return cell, found


def evaluated(model: nn.Module) -> Predictor:
    def network(x: Tensor) -> Tensor:
        with evaluating(model) as f:
            out: Tensor = f(x)
        return out

    return network


def run(box: TimeBox) -> int:
    """Seed after seed, the four networks of each; a pair gives what spatial smoothing does."""
    a = box.a
    for seed in a.seeds:
        seen: dict[str, Mapping[str, Frames]] = {}
        for variant in a.only if a.only is not None else VARIANTS:
            [experiment] = experiments(f"ss/table_e4/camvid_unet{variant}")
            try:
                cell, seen[variant] = measure(box, experiment, seed)
            except OutOfTime:
                print(f"out of time: {experiment.row} seed {seed} is not finished", flush=True)
                return 0
            plain = seen.get(variant.removesuffix("_smooth"))
            if variant.endswith("_smooth") and plain is not None:
                each = {v: difference(plain[v], f) for v, f in seen[variant].items()}
                cell = replace(cell, extras={**cell.extras, "spatial_against_none": each})
            box.store.write(experiment, cell)
            if "dropout" in cell.measured:  # Table 2 is the Bayesian half of E.4
                [twin] = experiments(f"ss/table2/{experiment.row}")
                box.store.write(twin, replace(cell, experiment=twin.name))
            said = {
                v: {m: row[m] for m in ("nll", "accuracy", "ece", "consistency")} for v, row in cell.measured.items()
            }
            print(f"{experiment.row} seed {seed}: {cell.seconds:.0f} s {json.dumps(jsonable(said))}", flush=True)
    return 0


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
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--members", type=int, default=50)
    parser.add_argument("--frames", type=int, help="of each part; by default all")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, help="some of the four networks, by suffix")
    parser.add_argument("--set", nargs="*", default=list(FAST), help="settings of every recipe")
    parser.add_argument("--take", nargs="*", default=[], help="ROW:SEED=RUN/, a run that is trained")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("segmentation-out"))
    parser.add_argument("--gather", type=Path, nargs="+")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--smoke", action="store_true")
    a = parser.parse_args(argv)
    if a.gather:
        return gather(a.gather, a.results)
    a.command = f"python -m benchmarks.segmentation_runs --epochs {a.epochs} --set {' '.join(a.set)}"
    if a.smoke:
        a.set, a.epochs, a.members, a.frames, a.device = [], 1, 2, 12, "cpu"
    a.out.mkdir(parents=True, exist_ok=True)
    return run(TimeBox(a))


if __name__ == "__main__":
    raise SystemExit(main())
