"""Smoothing on a GPU: its share of a plain copy's bandwidth, and what it adds to a network's step; ratios.

    python -m benchmarks.smoothing           # every kernel, layout and precision; ResNet-18 with and without
    python -m benchmarks.smoothing --steps            # the network alone

Forward moves two streams (read, write), backward three; the copy of the same map (two streams) runs in turns with them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.side_by_side import options
from calibrant.losses.cross_entropy import CrossEntropy
from calibrant.nn import build
from calibrant.nn.smoothing import Smooth, reference
from calibrant.nn.surgery import smooth as with_smoothing
from calibrant.training.step import Member, Step

KERNELS = ((1, 1), (1, 2, 1), (1, 4, 6, 4, 1))
LAYOUTS = {"channels_last": torch.channels_last, "nchw": torch.contiguous_format}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
Case = tuple[tuple[int, ...], str, str, str]  # kernel, layout, precision, padding


def milliseconds(*functions: Callable[[], Any], repeats: int = 20) -> list[float]:
    """The median of each by events on the device, in turns; calls are queued, so the device never waits for Python."""
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
    """The forward pass of the plain path against a copy."""
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
    """The (training step, inference) calls of a network on one resident batch."""
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
    """The same with the bfloat16 step of `calibrant train`: 32-bit weights and autocast."""
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
    """ResNet-18 for 32×32, bf16, channels-last, with and without smoothing: eager, captured, or by the trainer."""
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
    """The median milliseconds that Python takes to issue each step, and what smoothing adds until the device is done.

    The two take turns and are compared in pairs, because a busy machine drifts as much as they differ.
    """
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
    args = options(__doc__, steps=False, size="256,64,112,112", batch=512)
    size = tuple(map(int, args.size.split(",")))
    for case in () if args.steps else cases():
        say(" ".join(map(str, case)), shares(case, size))
    if not args.steps:
        say("(1, 1) channels_last bf16 plain path", {"forward_share": eager(size)})
    for times in (1, 2):  # at a small batch an eager step waits for Python, at a large one for the device
        for how in ("eager", "trainer"):
            say(f"network, {how}, batch {times * args.batch}", overhead(times * args.batch, how))
    say(f"network, captured in a graph, batch {args.batch}", overhead(args.batch, "captured"))


def say(name: str, row: dict[str, float]) -> None:
    print(f"{name:46s}{'  '.join(f'{k} {v:.3f}' for k, v in row.items())}", flush=True)


if __name__ == "__main__":
    main()
