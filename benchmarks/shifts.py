"""Corruptions: calibrant against numpy, scipy and Pillow, image by image on the CPU; and the whole suite on a device.

python -m benchmarks.shifts [--size 32] [--images 256] [--only NAME ...]   ratios per corruption and severity
python -m benchmarks.shifts --device cuda [--images 10000] [--batch 2500]           19 × 5 on the device and on the CPU

On the CPU both sides use one thread and take turns. The ratio is of the shortest processor times of several repeats,
which other work on the machine hardly changes.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.side_by_side import in_turns, options, seconds
from calibrant.shifts import SEVERITIES, SHIFTS, corrupt
from calibrant.shifts.corruption import SMALL
from tests.shifts.shifts_reference import Legacy, apply


def images(n: int, size: int) -> torch.Tensor:
    """Random uint8 images with the spectrum of natural ones."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(min(n, 256), 3, size, size, generator=generator)
    frequency = (torch.fft.fftfreq(size)[:, None] ** 2 + torch.fft.rfftfreq(size) ** 2).sqrt()
    frequency[0, 0] = 1
    field = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency, s=(size, size))
    field = (field - field.mean((2, 3), keepdim=True)) / field.std((2, 3), keepdim=True)
    some = (field * 60 + 120).clamp(0, 255).to(torch.uint8)
    return some.repeat(-(-n // len(some)), 1, 1, 1)[:n]


def against_reference(name: str, severity: int, x: torch.Tensor, repeats: int) -> float:
    """How many times faster ours is per image."""
    constant = SHIFTS[name].strengths[32 if x.shape[-1] <= SMALL else 224][severity - 1]
    few = x[: max(4, len(x) // 16)].permute(0, 2, 3, 1).numpy().copy()
    numbers = Legacy(0)

    def reference() -> None:
        for image in few:
            apply(name, image, constant, numbers)

    ours, theirs = map(min, in_turns([lambda: corrupt(x, name, severity), reference], repeats))
    return (theirs / len(few)) / (ours / len(x))


def suite(x: torch.Tensor, batch: int, device: str) -> float:
    """Seconds for all corruptions and severities. One batch is on the device at a time, and results are dropped."""

    def run(part: torch.Tensor) -> None:
        for start in range(0, len(part), batch):
            some = part[start : start + batch].to(device)
            for name in SHIFTS:
                for severity in range(1, SEVERITIES + 1):
                    corrupt(some, name, severity, index=start)
        if device != "cpu":
            torch.cuda.synchronize()

    run(x[: min(len(x), batch)])  # tables and plans
    return seconds(lambda: run(x), clock=time.perf_counter)


def main() -> None:
    args = options(__doc__, device="cpu", size=32, images=0, batch=2500, cpu_images=500, repeats=5, only=list(SHIFTS))
    if args.device != "cpu":
        n = args.images or 10_000
        x = images(n, args.size)
        there = suite(x, args.batch, args.device)
        torch.set_num_threads(2)
        here = suite(x[: args.cpu_images], min(args.batch, 256), "cpu") * n / min(n, args.cpu_images)
        found: dict[str, Any] = {"images": n, "device_s": there, "cpu_s_scaled": here, "times_faster": here / there}
        if torch.cuda.is_available():
            found["peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
        print(found)
        return
    torch.set_num_threads(1)
    n = args.images or (256 if args.size <= SMALL else 8)
    x = images(n, args.size)
    for name in args.only:
        faster = [against_reference(name, s, x, args.repeats) for s in range(1, SEVERITIES + 1)]
        print(f"{name:18s} {min(faster):7.2f} × faster at the slowest severity", end="   ")
        print(" ".join(f"{times:.1f}" for times in faster), flush=True)


if __name__ == "__main__":
    main()
