"""Smoothing on a GPU: share of a plain copy's bandwidth, and what it adds to a network's step. Ratios, one process.

    python benchmarks/smoothing.py [--json]           # every kernel, layout and precision; ResNet-18 with and without
    python benchmarks/smoothing.py --steps            # the network alone
    python benchmarks/smoothing.py --tune [--json]    # first tries ways to cut the work, and goes on with the best

Forward moves two streams (read, write), backward three; the copy of the same map (two streams) runs in turns with them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from calibrant.losses.cross_entropy import CrossEntropy
from calibrant.nn import build
from calibrant.nn.smoothing import Smooth, reference
from calibrant.nn.surgery import smooth as with_smoothing
from calibrant.training.step import Member, Step

KERNELS = ((1, 1), (1, 2, 1), (1, 4, 6, 4, 1))
LAYOUTS = {"channels_last": torch.channels_last, "nchw": torch.contiguous_format}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
ROWS = (8, 16, 28, 56)
Case = tuple[tuple[int, ...], str, str, str]  # kernel, layout, precision, padding
Cut = tuple[int, int, int]  # columns, rows in flight, warps

CUTS: dict[tuple[str, int], Sequence[Cut]] = {
    ("channels_last", 2): ((1, 2, 4), (1, 4, 4), (2, 1, 4), (2, 2, 4), (2, 4, 4), (4, 1, 4), (4, 2, 4), (2, 2, 8)),
    ("channels_last", 3): ((1, 1, 4), (1, 2, 4), (2, 1, 4), (2, 2, 4), (4, 1, 4), (4, 2, 4), (2, 1, 8)),
    ("channels_last", 5): ((1, 1, 4), (1, 2, 4), (2, 1, 4), (2, 2, 4), (4, 1, 4), (1, 1, 8), (2, 1, 2)),
    ("nchw", 2): ((8, 1, 4), (8, 2, 4), (8, 4, 4), (8, 1, 8), (8, 2, 8), (8, 2, 2)),
    ("nchw", 3): ((8, 1, 4), (8, 2, 4), (8, 4, 4), (8, 1, 8), (8, 2, 8), (8, 2, 2)),
    ("nchw", 5): ((8, 1, 4), (8, 2, 4), (8, 4, 4), (8, 1, 8), (8, 2, 8), (8, 2, 2)),
}


def milliseconds(*functions: Callable[[], Any], repeats: int = 20) -> list[float]:
    """Median of each, by events on the device, in turns; queued, so that the device never waits for Python."""
    for f in functions * 3:
        f()
    torch.cuda.synchronize()
    torch.cuda._sleep(5_000_000)  # cycles in which the queue fills
    times: list[list[Any]] = [[] for _ in functions]
    for _, (f, into) in itertools.product(range(repeats), zip(functions, times, strict=True)):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        f()
        end.record()
        into.append((start, end))
    torch.cuda.synchronize()
    return [sorted(start.elapsed_time(end) for start, end in pairs)[len(pairs) // 2] for pairs in times]


def cases() -> list[Case]:
    every = [(k, layout, d, "replicate") for d in DTYPES for k in KERNELS for layout in LAYOUTS]
    return every + [((1, 1), layout, "bf16", p) for p in ("reflect", "zero") for layout in LAYOUTS]


def _set(key: tuple[str, str, int], cut: Cut, rows: int) -> None:
    from calibrant.nn.kernels.smooth import Shape
    from calibrant.nn.kernels.smooth import cut as recut

    recut(key, Shape(cut[0], rows, cut[1], cut[2]))


def _calls(case: Case, size: tuple[int, ...]) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]:
    from calibrant.nn.kernels.smooth import smooth, smooth_backward

    kernel, layout, dtype, padding = case
    x = torch.randn(size, device="cuda", dtype=DTYPES[dtype]).contiguous(memory_format=LAYOUTS[layout])
    g, taps = torch.randn_like(x), [v / sum(kernel) for v in kernel]
    other = torch.empty_like(x)
    return (
        lambda: other.copy_(x),
        lambda: smooth(x, taps, "tanh", 10.0, padding),
        lambda: smooth_backward(x, g, taps, "tanh", 10.0, padding),
    )


def _compile(case: Case, cut: Cut | None) -> float:
    """In a process of its own: what it compiles is found on disk by the one that measures."""
    if cut is not None:
        for which in ("forward", "backward"):
            _set((which, case[1], len(case[0])), cut, 16)
    start = time.perf_counter()
    _, forward, backward = _calls(case, (2, 64, 16, 16))
    forward()
    backward()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def compile_ahead(jobs: list[tuple[Case, Cut | None]], processes: int) -> None:
    """Longest first. A cut that fails to compile ends the benchmark."""
    jobs = sorted(jobs, key=lambda job: -len(job[0][0]) * (1 if job[1] is None else job[1][0] * job[1][1]))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        times = list(pool.map(_compile, *zip(*jobs, strict=True)))
    print(f"compiled {len(jobs)} pairs, {sum(times):.0f} s in all, by {processes} processes", file=sys.stderr)


def tune(kernel: tuple[int, ...], layout: str, size: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """In bf16, forward and backward: cuts and rows by their share of a copy. The best stays in the table."""
    taps, results = len(kernel), {}
    copy, *both = _calls((kernel, layout, "bf16", "replicate"), size)
    for which, call, streams in zip(("forward", "backward"), both, (2, 3), strict=True):
        found = {}
        for cut, rows in itertools.product(CUTS[layout, taps], ROWS):
            _set((which, layout, taps), cut, rows)
            plain, ours = milliseconds(copy, call, repeats=9)
            found[cut, rows] = plain / ours * streams / 2
        best = sorted(found, key=lambda c: -found[c])
        _set((which, layout, taps), *best[0])
        results[f"{which} {layout} {taps}"] = {
            "columns, flight, warps; rows": [f"{cut}; {rows}: {found[cut, rows]:.3f}" for cut, rows in best[:5]],
            "cuts": {str(cut): round(max(found[cut, rows] for rows in ROWS), 3) for cut in CUTS[layout, taps]},
            "rows": {rows: round(max(found[cut, rows] for cut in CUTS[layout, taps]), 3) for rows in ROWS},
        }
    return results


def rows_of_small_maps() -> dict[str, dict[str, float]]:
    """Milliseconds of ten calls by rows, of the maps that are smoothed in a ResNet-18 for 32×32 with batches of 512."""
    from calibrant.nn.kernels.smooth import SHAPES, cut

    results: dict[str, dict[str, float]] = {}
    for size in ((512, 64, 32, 32), (512, 128, 16, 16), (512, 256, 8, 8), (512, 512, 4, 4)):
        _, *both = _calls(((1, 1), "channels_last", "bf16", "replicate"), size)
        for which, call in zip(("forward", "backward"), both, strict=True):
            key, row = (which, "channels_last", 2), results.setdefault(f"{which} {size}", {})
            table = SHAPES[key]
            for rows in (2, 4, 8, 16, 32):
                cut(key, replace(table, rows=rows))
                (row[f"{rows}"],) = milliseconds(_captured(lambda call=call: [call() for _ in range(10)]))
            cut(key, table)
    return results


def shares(case: Case, size: tuple[int, ...]) -> dict[str, float]:
    copy, forward, backward = milliseconds(*_calls(case, size))
    return {
        "copy_ms": copy,
        "forward_ms": forward,
        "backward_ms": backward,
        "forward_share": copy / forward,
        "backward_share": 1.5 * copy / backward,
    }


def eager(size: tuple[int, ...]) -> float:
    """The plain path, forward, against a copy."""
    x = torch.randn(size, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    layer, other = Smooth(), torch.empty_like(x)
    with torch.no_grad(), reference():
        copy, plain = milliseconds(lambda: other.copy_(x), lambda: layer(x), repeats=5)
    return copy / plain


def _captured(f: Callable[[], Any]) -> Callable[[], Any]:
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(3):
            f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f()

    def replay(kept: Callable[[], Any] = f) -> None:  # a graph does not keep alive what it reads: f does
        graph.replay()

    return replay


def _steps(model: torch.nn.Module, batch: int, captured: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """(training step, inference) of a network on one resident batch."""
    x = torch.randn(batch, 3, 32, 32, device="cuda", dtype=torch.bfloat16)
    x, y = x.contiguous(memory_format=torch.channels_last), torch.randint(10, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)

    def train() -> None:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x).float(), y).backward()
        optimizer.step()

    def infer() -> None:
        model.eval()
        with torch.no_grad():
            model(x)

    return (_captured(train), _captured(infer)) if captured else (train, infer)


def _trainers(model: torch.nn.Module, batch: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The same by the step that `calibrant train` takes in bfloat16: weights of 32 bits, autocast."""
    x = torch.randn(batch, 3, 32, 32, device="cuda").contiguous(memory_format=torch.channels_last)
    index = torch.arange(batch, device="cuda")
    y = index % 10
    autocast = partial(torch.autocast, "cuda", torch.bfloat16)
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, fused=True)
    step = Step(Member(model, optimiser, model), CrossEntropy(reduction="none"), autocast=autocast)
    q = F.one_hot(y, 10).float()

    def train() -> None:
        model.train()
        step(x, q, y, index, batch)

    def infer() -> None:
        model.eval()
        with torch.no_grad(), autocast():
            model(x)

    return train, infer


def overhead(batch: int, how: str) -> dict[str, float]:
    """ResNet-18 for 32×32, bf16, channels-last: with smoothing against without; eager, captured or by the trainer."""
    torch.backends.cudnn.benchmark = True
    bare = build("resnet18", classes=10).to("cuda", memory_format=torch.channels_last)
    if how == "trainer":
        plain, smoothed = _trainers(bare, batch), _trainers(with_smoothing(bare), batch)
    else:
        bare = bare.to(torch.bfloat16)
        plain, smoothed = (_steps(m, batch, how == "captured") for m in (bare, with_smoothing(bare)))
    row = {}
    for name, without, with_ in zip(("train", "inference"), plain, smoothed, strict=True):
        a, b = milliseconds(without, with_, repeats=25)
        row |= {f"{name}_ms": a, f"{name}_smoothed_ms": b, f"{name}_added": b / a - 1}
        row |= {f"{name}_{key}": value for key, value in _host(without, with_).items()}
    return row


def _host(without: Callable[[], Any], with_: Callable[[], Any], repeats: int = 60) -> dict[str, float]:
    """Median milliseconds that Python takes to issue each, in turns (one after the other, a busy machine's drift is as
    large as the difference), and what smoothing adds until the device is done, from pairs of neighbours."""
    host: dict[str, list[float]] = {"host_ms": [], "smoothed_host_ms": []}
    wall: dict[str, list[float]] = {key: [] for key in host}
    for i, (key, f) in itertools.product(range(repeats + 10), zip(host, (without, with_), strict=True)):
        torch.cuda.synchronize()
        start = time.perf_counter()
        f()
        issued = time.perf_counter() - start
        torch.cuda.synchronize()
        if i >= 10:  # warm by then
            host[key].append(1e3 * issued)
            wall[key].append(1e3 * (time.perf_counter() - start))
    plain, smoothed = wall.values()
    added = median(b - a for a, b in zip(plain, smoothed, strict=True)) / median(plain)
    return {key: median(times) for key, times in host.items()} | {"wall_added": added}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tune", action="store_true", help="search how to cut the work")
    parser.add_argument("--steps", action="store_true", help="only what smoothing adds to a network's steps")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--size", default="256,64,112,112", help="N,C,H,W of the map")
    parser.add_argument("--batch", type=int, default=512, help="of the network")
    parser.add_argument("--processes", type=int, default=12, help="that compile")
    args = parser.parse_args()
    size = tuple(map(int, args.size.split(",")))
    start = time.perf_counter()
    jobs: list[tuple[Case, Cut | None]] = [(case, None) for case in cases()]
    if args.tune:
        grid = itertools.product(KERNELS, LAYOUTS)
        jobs = [((k, layout, "bf16", "replicate"), cut) for k, layout in grid for cut in CUTS[layout, len(k)]]
    if not args.steps:
        compile_ahead(jobs, args.processes)
    result: dict[str, Any] = {}

    def keep(section: str, name: str, row: dict[str, Any]) -> None:
        """Said as soon as it is known."""
        result.setdefault(section, {})[name] = row
        numbers = all(isinstance(v, float) for v in row.values())
        said = "  ".join(f"{k} {v:.3f}" for k, v in row.items()) if numbers else json.dumps(row)
        print(f"{section:10s}{name:46s}{said}", file=sys.stderr if args.json else sys.stdout, flush=True)

    if args.tune:
        for layout, kernel in itertools.product(LAYOUTS, KERNELS):
            for name, row in tune(kernel, layout, size).items():
                keep("tune", name, row)
        for name, row in rows_of_small_maps().items():
            keep("rows", name, row)
    for case in () if args.steps else cases():
        keep("bandwidth", " ".join(map(str, case)), shares(case, size))
    if not args.steps:
        keep("bandwidth", "(1, 1) channels_last bf16 plain path", {"forward_share": eager(size)})
    for times in (1, 2):  # at a small batch an eager step waits for Python, at a large one for the device
        for how in ("eager", "trainer"):
            keep("network", f"{how}, batch {times * args.batch}", overhead(times * args.batch, how))
    keep("network", f"captured in a graph, batch {args.batch}", overhead(args.batch, "captured"))
    print(f"done after {time.perf_counter() - start:.0f} s", file=sys.stderr)
    if args.json:
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
