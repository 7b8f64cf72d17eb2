"""Images per second of the training loop, against a bare step loop on one resident batch.

    python -m benchmarks.train                                   # CPU: ResNet-20 and PEP's CNN, float32, batch 128
    python -m benchmarks.train --device cuda                     # bf16, channels-last: batch 512 and batch 128
    python -m benchmarks.train --device cuda --networks resnet32 --batches 128 --engines eager,graph

`bare` is a lower limit that nobody trains with: forward, cross-entropy, backward and fused SGD on a batch that never
changes, without data, augmentation or metrics. `ours` is the loop as users run it, on random images: order, crop and
flip, normalisation, targets, schedule, running loss and accuracy, the check for bad losses. They take turns. A ratio is
the median over rounds of ours over the bare runs just before and after it, so that other work on the machine cancels.
On a busy CPU, compare processor seconds (`--clock cpu`); on a GPU, wall seconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.side_by_side import options, timed
from calibrant.data import Data, Part
from calibrant.nn import build
from calibrant.training.loop import Loop
from calibrant.training.networks import networks
from calibrant.training.recipe import Recipe
from calibrant.training.recipes import RECIPES
from calibrant.training.run import How, make_fabric
from calibrant.types import Split

Run = Callable[[], int]
"""Runs some steps, and returns the number of images seen."""


@dataclass(frozen=True)
class Setting:
    """The settings that both sides share."""

    network: str
    batch: int
    steps: int
    device: str
    bfloat16: bool
    channels_last: bool


def images(n: int, split: Split) -> Part:
    rng = torch.Generator().manual_seed(n)
    x = torch.randint(0, 256, (n, 3, 32, 32), dtype=torch.uint8, generator=rng)
    return Part(x, torch.randint(0, 10, (n,), generator=rng), torch.arange(n), split)


def recipe(setting: Setting, engine: str) -> Recipe:
    base = RECIPES["ss/cifar10_resnet18"].with_settings({"network": setting.network, "engine": engine})
    precision = "bfloat16" if setting.bfloat16 else "float32"
    changed = {"batch": setting.batch, "precision": precision, "channels_last": setting.channels_last, "epochs": 1000}
    return base.with_settings(changed)


def ours(setting: Setting, engine: str) -> Run:
    """A call that runs one epoch of our loop; the first call also captures or compiles."""
    chosen = recipe(setting, engine)
    parts = {
        Split.TRAIN: images(setting.batch * setting.steps, Split.TRAIN),
        Split.VALIDATION: images(1000, Split.VALIDATION),
    }
    data = Data("random", parts, tuple(map(str, range(10))), (3, 32, 32), (0.5,) * 3, (0.25,) * 3)
    loop = Loop(chosen, data, make_fabric(chosen, How(device=setting.device)), networks(chosen, data))
    epoch = iter(range(10**6))

    def run() -> int:
        for m in loop.members:
            m.model.train()
        losses, _, seen = loop._steps(next(epoch), time.perf_counter())
        float(losses.sum())  # waits for the device
        return seen

    return run


def bare(setting: Setting, engine: str) -> Run:
    """A call that runs as many steps on one resident batch."""
    device = torch.device(setting.device)
    model = build(setting.network, classes=10).to(device).train()
    x = torch.randn(setting.batch, 3, 32, 32, device=device)
    if setting.channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (setting.batch,), device=device)
    lr: Any = torch.tensor(0.1, device=device) if device.type == "cuda" else 0.1
    fused = True if device.type == "cuda" else None
    optimiser = torch.optim.SGD(model.parameters(), lr, 0.9, weight_decay=5e-4, fused=fused)
    forward: Any = torch.compile(model) if "compile" in engine else model

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16) if setting.bfloat16 else nullcontext():
            logits = forward(x)
        F.cross_entropy(logits.float(), y).backward()
        optimiser.step()

    replay = step
    if "graph" in engine:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        replay = graph.replay

    kept = (step, model, x, y, optimiser)  # a graph does not own the tensors that it reads and writes

    def run() -> int:
        assert kept
        for _ in range(setting.steps):
            replay()
        return setting.batch * setting.steps

    return run


def measure(setting: Setting, engines: Sequence[str], rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    """Time bare, ours, bare, ours, …, bare: the best rate of each, and the median of the ratios."""

    def rate(run: Run) -> float:
        seen, seconds = timed(run, setting.device, clock)
        return float(seen / seconds)

    sides: dict[str, tuple[Run, Run]] = {e: (ours(setting, e), bare(setting, e)) for e in engines}
    for pair in sides.values():
        for run in pair:
            run()  # warm: allocations, algorithms, capture
    mine: dict[str, list[float]] = {e: [] for e in engines}
    plain: dict[str, list[float]] = {e: [rate(sides[e][1])] for e in engines}
    for _ in range(rounds):
        for e in engines:
            mine[e].append(rate(sides[e][0]))
            plain[e].append(rate(sides[e][1]))
    found = {f"{side} {e}": max(seen[e]) for e in engines for side, seen in (("bare", plain), ("ours", mine))}
    ratios = {}
    for e in engines:
        each = [2 * m / (b + c) for m, b, c in zip(mine[e], plain[e], plain[e][1:], strict=False)]
        ratios[f"ours/bare, {e}"] = statistics.median(each)
        if "eager" in engines and e != "eager":
            ratios[f"ours {e}/ours eager"] = found[f"ours {e}"] / found["ours eager"]
    return {**setting.__dict__, "rounds": rounds, "images_per_second": found, "ratios": ratios}


def main() -> None:
    a = options(
        __doc__, device="cpu", networks="", batches="", engines="", steps=0, rounds=7, clock="wall", float32=False
    )
    cuda = a.device == "cuda"
    torch.backends.cudnn.benchmark = cuda  # for both sides
    batches = [int(b) for b in (a.batches or ("512,128" if cuda else "128")).split(",")]
    engines = (a.engines or ("eager,graph" if cuda else "eager")).split(",")
    names = (a.networks or ("resnet18" if cuda else "resnet20,cifar_cnn")).split(",")
    base = Setting("", 0, 0, a.device, cuda and not a.float32, cuda)
    for name, batch in product(names, batches):
        setting = replace(base, network=name, batch=batch, steps=a.steps or (200 if cuda else 6))
        result = measure(setting, engines, a.rounds, time.process_time if a.clock == "cpu" else time.perf_counter)
        print(f"\n{setting.network}, batch {batch}, {setting.steps} steps, {a.device}, {a.clock} clock")
        for name, rate in result["images_per_second"].items():
            print(f"  {name:<20} {rate:>12,.0f} images/s")
        for name, ratio in result["ratios"].items():
            print(f"  {name:<28} {ratio:.3f}")


if __name__ == "__main__":
    main()
