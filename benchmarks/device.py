"""What the panel, its intervals and the fits cost on a CUDA device, and how far they are from those of the CPU.

    python -m benchmarks.device [--device cuda] [--rounds 5] [--json OUT] [--profile]

One line per job: the median of the rounds after a warm-up, in milliseconds, the limit, and the largest absolute
difference between the CPU's numbers and the device's. `--profile` adds where the panel and the fit of a temperature
spend the device's time, and how often they launch a kernel or wait for one. `--device cpu --small` checks the script
itself.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import calibrant
from benchmarks.metrics import data
from benchmarks.side_by_side import Call, in_turns, options, timed
from calibrant.posthoc import CALIBRATORS
from calibrant.posthoc.guard import guard
from calibrant.posthoc.temperature import Temperature
from calibrant.types import Report


def milliseconds(call: Call, device: str, rounds: int) -> tuple[float, Any]:
    """(median of the rounds after one that warms up, what the first one returned)."""
    out = call()
    return 1e3 * statistics.median(in_turns([call], rounds, device, clock=time.perf_counter)[0]), out


def apart(a: Report, b: Report) -> float:
    """The largest difference of a value or an end of an interval."""
    gaps = [0.0]
    for name, e in a.items():
        for end in ("value", "low", "high"):
            x, y = getattr(e, end), getattr(b[name], end)
            gaps.append(float("inf") if (x is None) != (y is None) else abs((x or 0.0) - (y or 0.0)))
    return max(gaps)


def main() -> None:
    a = options(__doc__, device="cuda", rounds=5, small=False, json="", profile=False)
    rows: list[dict[str, Any]] = []

    def row(job: str, ms: float, limit: float | None, difference: float | None, note: str = "") -> None:
        rows.append({"job": job, "ms": round(ms, 3), "limit_ms": limit, "difference": difference, "note": note})
        told = "" if difference is None else f"{difference:.1e}"
        print(f"{job:<46} {ms:>9.2f} ms  {'' if limit is None else f'≤ {limit:g}':>8}  {told:>8}  {note}", flush=True)

    name = torch.cuda.get_device_name() if a.device == "cuda" else "CPU"
    print(f"{name}, torch {torch.__version__}, {torch.get_num_threads()} threads")
    wide, long = ((500, 100), (2000, 10)) if a.small else ((50_000, 1_000), (1_000_000, 10))
    for n, k in (wide, long):
        z, y = data(n, k)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            here = z.to(dtype)
            there, labels = here.to(a.device), y.to(a.device)
            if dtype == torch.float32:
                ms, _ = milliseconds(lambda there=there: torch.log_softmax(there, -1), a.device, a.rounds)
                row(f"log_softmax, {n:,} × {k:,}", ms, None, None)
            ms, found = milliseconds(
                lambda there=there, labels=labels: calibrant.evaluate(there, labels, intervals=False),
                a.device,
                a.rounds,
            )
            expected = calibrant.evaluate(here, y, intervals=False)
            row(f"point panel, {n:,} × {k:,}, {str(dtype)[6:]}", ms, 10, apart(expected, found))
            if dtype == torch.float32 and (n, k) == long:
                ms, found = milliseconds(
                    lambda there=there, labels=labels: calibrant.evaluate(there, labels), a.device, a.rounds
                )
                expected, cpu = timed(lambda here=here, y=y: calibrant.evaluate(here, y), clock=time.perf_counter)
                row(f"with intervals, {n:,} × {k:,}", ms, 500, apart(expected, found), f"CPU {1e3 * cpu:.0f} ms")
    temperatures(*wide, a.device, a.rounds, row)
    if a.profile:
        for n, k in (wide, long):
            there, labels = (t.to(a.device) for t in data(n, k))
            where(f"point panel, {n:,} × {k:,}", partial(calibrant.evaluate, there, labels, intervals=False))
        there, labels = (t.to(a.device) for t in data(*wide))
        where("fit('temperature')", partial(calibrant.fit, "temperature", there, labels))
    linear(*((2000, 20) if a.small else (50_000, 100)), a.device, row)
    if a.json:
        Path(a.json).write_text(json.dumps({"device": name, "torch": torch.__version__, "rows": rows}, indent=2) + "\n")


def where(job: str, call: Call) -> None:
    """Print where the time of a call goes."""
    with torch.profiler.profile() as seen:
        call()
    found = seen.key_averages()
    launched, waited = (sum(e.count for e in found if word in e.key) for word in ("LaunchKernel", "Synchronize"))
    on = "device" if any(e.self_device_time_total for e in found) else "cpu"
    print(f"{job}: {launched} launches, {waited} waits")
    print(found.table(sort_by=f"self_{on}_time_total", row_limit=15, max_name_column_width=60))


def temperatures(n: int, k: int, device: str, rounds: int, row: Callable[..., None]) -> None:
    z, y = data(n, k)
    p = calibrant.predictions(z, y)
    there = calibrant.predictions(z.to(device), y.to(device))
    expected = Temperature().solve(p).summary()["temperature"]
    ms, found = milliseconds(lambda: Temperature().solve(there), device, rounds)
    row(f"temperature, solved, {n:,} × {k:,}", ms, None, abs(found.summary()["temperature"] - expected))
    ms, verdict = milliseconds(lambda: guard(Temperature(), there, fitted=found), device, rounds)
    row("its guard", ms, None, abs(verdict.nll_after.value - guard(Temperature(), p).nll_after.value))
    ms, _ = milliseconds(there.fingerprint, device, 2)
    row("content hash of the logits, on the device", ms, None, None)
    ms, found = milliseconds(lambda: calibrant.fit("temperature", there.logits, there.labels), device, rounds)
    row("fit('temperature'), guarded and hashed", ms, 30, abs(found.summary()["temperature"] - expected))


def linear(n: int, k: int, device: str, row: Callable[..., None]) -> None:
    """Vector, structured and Dirichlet scaling, without their guard."""
    z, y = data(n, k)
    p, there = calibrant.predictions(z, y), calibrant.predictions(z.to(device), y.to(device))
    probe: Tensor = z[:500]
    for name in ("vector", "structured_vector", "structured_matrix", "dirichlet"):
        settings = {"lambda_": 1.0, "mu": 1.0} if name == "dirichlet" else {}
        calibrator = CALIBRATORS[name](**settings)
        ms, found = milliseconds(lambda c=calibrator: c.fold(there), device, 1)
        expected, cpu = timed(lambda c=calibrator: c.fold(p), clock=time.perf_counter)
        gap = (torch.log_softmax(found(probe), 1) - torch.log_softmax(expected(probe), 1)).abs().max()
        row(f"{name}, {n:,} × {k:,}", ms, None, float(gap), f"CPU {1e3 * cpu:.0f} ms")


if __name__ == "__main__":
    main()
