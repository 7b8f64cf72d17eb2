"""Corruptions: calibrant against numpy, scipy and Pillow image by image on the CPU, and the whole suite on a device.

python -m benchmarks.shifts [--size 32] [--images 256] [--only NAME ...] [--json]   ratios per corruption and severity
python -m benchmarks.shifts --device cuda [--images 10000] [--batch 2500]           19 × 5 on the device and on the CPU

On the CPU both sides have one thread, and what counts is the processor time of the process (best of several repeats,
taken in turn), which other work on the machine disturbs little. Ratios only.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from calibrant.shifts import SEVERITIES, SHIFTS, corrupt
from calibrant.shifts.corruption import SMALL
from tests.shifts.shifts_reference import Legacy, apply


def images(n: int, size: int) -> torch.Tensor:
    """Bytes with the spectrum of natural images."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(min(n, 256), 3, size, size, generator=generator)
    frequency = (torch.fft.fftfreq(size)[:, None] ** 2 + torch.fft.rfftfreq(size) ** 2).sqrt()
    frequency[0, 0] = 1
    field = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency, s=(size, size))
    field = (field - field.mean((2, 3), keepdim=True)) / field.std((2, 3), keepdim=True)
    some = (field * 60 + 120).clamp(0, 255).to(torch.uint8)
    return some.repeat(-(-n // len(some)), 1, 1, 1)[:n]


def seconds(f: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> float:
    start = clock()
    f()
    return clock() - start


def against_reference(name: str, severity: int, x: torch.Tensor, repeats: int) -> dict[str, float]:
    """Microseconds an image on both sides, and how many times faster ours is."""
    constant = SHIFTS[name].strengths[32 if x.shape[-1] <= SMALL else 224][severity - 1]
    few = x[: max(4, len(x) // 16)].permute(0, 2, 3, 1).numpy().copy()
    numbers = Legacy(0)

    def reference() -> None:
        for image in few:
            apply(name, image, constant, numbers)

    corrupt(x, name, severity)
    reference()
    ours, theirs = float("inf"), float("inf")
    for _ in range(repeats):
        ours = min(ours, seconds(lambda: corrupt(x, name, severity), time.process_time) / len(x))
        theirs = min(theirs, seconds(reference, time.process_time) / len(few))
    return {"ours_us": 1e6 * ours, "reference_us": 1e6 * theirs, "times_faster": theirs / ours}


def suite(x: torch.Tensor, batch: int, device: str) -> float:
    """Seconds for all corruptions and severities; one batch is on the device at a time, and no result is kept."""

    def run(part: torch.Tensor) -> None:
        for start in range(0, len(part), batch):
            some = part[start : start + batch].to(device)
            for name in SHIFTS:
                for severity in range(1, SEVERITIES + 1):
                    corrupt(some, name, severity, index=start)
        if device != "cpu":
            torch.cuda.synchronize()

    run(x[: min(len(x), batch)])  # tables and plans
    return seconds(lambda: run(x))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--images", type=int)
    parser.add_argument("--batch", type=int, default=2500)
    parser.add_argument("--cpu-images", type=int, default=500, help="items of the CPU's side of --device cuda")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(SHIFTS))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.device != "cpu":
        n = args.images or 10_000
        x = images(n, args.size)
        there = suite(x, args.batch, args.device)
        torch.set_num_threads(2)
        here = suite(x[: args.cpu_images], min(args.batch, 256), "cpu") * n / min(n, args.cpu_images)
        found: dict[str, Any] = {"images": n, "device_s": there, "cpu_s_scaled": here, "times_faster": here / there}
        if torch.cuda.is_available():
            found["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        print(json.dumps(found) if args.json else found)
        return
    torch.set_num_threads(1)
    n = args.images or (256 if args.size <= SMALL else 8)
    x = images(n, args.size)
    rows = {}
    for name in args.only:
        severities = [against_reference(name, s, x, args.repeats) for s in range(1, SEVERITIES + 1)]
        rows[name] = min(severities, key=lambda r: r["times_faster"])
        if not args.json:
            worst = rows[name]
            print(f"{name:18s} {worst['times_faster']:7.2f} × faster at the slowest severity", end="   ")
            print(" ".join(f"{r['times_faster']:.1f}" for r in severities), flush=True)
    if args.json:
        print(
            json.dumps({"size": args.size, "threads": torch.get_num_threads(), "numpy": np.__version__, "rows": rows})
        )


if __name__ == "__main__":
    main()
