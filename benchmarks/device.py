"""The time of the panel, its intervals and the fits on a CUDA device, and how far their numbers are from the CPU's.

    python -m benchmarks.device [--device cuda] [--rounds 5] [--json benchmarks/device.json] [--profile]

One table with one row per job: the median milliseconds after a warm-up, the largest absolute difference from the CPU's
numbers, a limit for each, and whether both are kept. `python -m benchmarks.speed --page` puts the table of
`benchmarks/device.json` on docs/speed.md. `--profile` adds where the panels and the fit of a temperature spend the
device's time, and how often they launch a kernel or wait for one. `--device cpu --small` checks the script.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import calibrant
from benchmarks.metrics import data
from benchmarks.side_by_side import Call, in_turns, machine, options, table, timed
from calibrant.posthoc import CALIBRATORS
from calibrant.posthoc.guard import guard
from calibrant.posthoc.temperature import Temperature
from calibrant.types import Report

SAME, SOLVED, FITTED = 1e-9, 1e-6, 1e-4
"""Largest allowed differences: of values and interval ends, of a temperature, of a linear map's log-probabilities."""
HEAD = ("job", "ms", "limit", "difference", "limit", "")
PACKAGES = ("calibrant", "torch", "triton", "numpy")


@dataclass(frozen=True)
class Row:
    """The result of a job; a limit of None is not judged."""

    job: str
    ms: float
    limit: float | None = None
    difference: float | None = None
    most: float | None = None

    @property
    def verdict(self) -> str:
        asked = [(self.ms, self.limit), (self.difference, self.most)]
        kept = [value is not None and value <= most for value, most in asked if most is not None]
        return "" if not kept else "met" if all(kept) else "**missed**"

    def cells(self) -> tuple[str, ...]:
        limit, most = ("" if x is None else f"≤ {x:.3g}" for x in (self.limit, self.most))
        return self.job, f"{self.ms:.2f}", limit, "" if self.difference is None else f"{self.difference:.1e}", most


class Bench:
    """Runs the jobs on one device."""

    def __init__(self, device: str, rounds: int) -> None:
        self.device, self.rounds, self.rows = device, rounds, list[Row]()

    def run(self, call: Call) -> tuple[float, Any]:
        """(median milliseconds of the rounds after a warm-up, what the call returns)."""
        out = call()
        return 1e3 * statistics.median(in_turns([call], self.rounds, self.device, clock=time.perf_counter)[0]), out

    def add(self, *values: Any) -> None:
        self.rows.append(Row(*values))
        print("  ".join(self.rows[-1].cells()), self.rows[-1].verdict, flush=True)

    def there(self, *tensors: Tensor) -> list[Tensor]:
        return [t.to(self.device) for t in tensors]

    def panels(self, z: Tensor, y: Tensor, *, intervals: bool) -> None:
        size = f"{z.shape[0]:,} × {z.shape[1]:,}"
        ms, _ = self.run(partial(torch.log_softmax, *self.there(z), -1))
        self.add(f"log_softmax, {size}", ms)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            here = z.to(dtype)
            ms, found = self.run(partial(calibrant.evaluate, *self.there(here, y), intervals=False))
            expected = calibrant.evaluate(here, y, intervals=False)
            self.add(f"point panel, {size}, {str(dtype)[6:]}", ms, 10, apart(expected, found), SAME)
        if intervals:
            ms, found = self.run(partial(calibrant.evaluate, *self.there(z, y)))
            self.add(f"panel with intervals, {size}", ms, 500, apart(calibrant.evaluate(z, y), found), SAME)

    def temperature(self, z: Tensor, y: Tensor) -> None:
        size, p = f"{z.shape[0]:,} × {z.shape[1]:,}", calibrant.predictions(z, y)
        there = calibrant.predictions(*self.there(z, y))
        expected = Temperature().fit(p)

        def off(found: Any) -> float:
            return abs(found.summary()["temperature"] - expected.summary()["temperature"])

        ms, solved = self.run(partial(Temperature().solve, there))
        self.add(f"temperature, solved, {size}", ms, None, off(solved), SOLVED)
        ms, verdict = self.run(partial(guard, Temperature(), there, fitted=solved))
        gap = abs(verdict.nll_after.value - guard(Temperature(), p).nll_after.value)
        self.add("its guard", ms, None, gap, SOLVED)
        ms, found = self.run(there.fingerprint)
        self.add("content hash of the logits", ms, None, float(found != expected.record.data), 0)
        ms, found = self.run(partial(calibrant.fit, "temperature", there))
        self.add(f"fit('temperature'), guarded and hashed, {size}", ms, 30, off(found), SOLVED)

    def linear(self, z: Tensor, y: Tensor) -> None:
        """Vector, structured and Dirichlet scaling without their guard; the limit is the CPU's time."""
        p, there = calibrant.predictions(z, y), calibrant.predictions(*self.there(z, y))
        for name in ("vector", "structured_vector", "structured_matrix", "dirichlet"):
            calibrator = CALIBRATORS[name](**({"lambda_": 1.0, "mu": 1.0} if name == "dirichlet" else {}))
            ms, found = self.run(partial(calibrator.fit_map, there))
            expected, cpu = timed(partial(calibrator.fit_map, p), clock=time.perf_counter)
            gap = (torch.log_softmax(found(z[:500]), 1) - torch.log_softmax(expected(z[:500]), 1)).abs().max()
            self.add(f"{name}, {z.shape[0]:,} × {z.shape[1]:,}", ms, 1e3 * cpu, float(gap), FITTED)


def apart(a: Report, b: Report) -> float:
    """The largest difference of a value or of an interval end."""
    gaps = [0.0]
    for name, e in a.items():
        for end in ("value", "low", "high"):
            x, y = getattr(e, end), getattr(b[name], end)
            gaps.append(float("inf") if (x is None) != (y is None) else abs((x or 0.0) - (y or 0.0)))
    return max(gaps)


def section(record: dict[str, Any]) -> str:
    """The part of docs/speed.md about a device."""
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    rows = [Row(**row) for row in record["rows"]]
    lines = [
        "## On a GPU",
        "",
        "    python -m benchmarks.device --json benchmarks/device.json",
        "",
        "Median milliseconds after a warm-up, with the logits already on the device. The difference is the largest",
        "absolute one between a number from the device and the same number from the CPU. For vector, structured and",
        "Dirichlet scaling the limit is the time that the CPU of the same machine takes.",
        "",
        f"{record['date']}, {record['device']}, {record['threads']} CPU threads. {versions}.",
        "",
        table(HEAD, [(*row.cells(), row.verdict) for row in rows], " r r"),
    ]
    return "\n".join(lines)


def where(job: str, call: Call) -> None:
    """Print where a call spends its time."""
    with torch.profiler.profile() as seen:
        call()
    found = seen.key_averages()
    launched, waited = (sum(e.count for e in found if word in e.key) for word in ("LaunchKernel", "Synchronize"))
    on = "device" if any(e.self_device_time_total for e in found) else "cpu"
    print(f"{job}: {launched} launches, {waited} waits")
    print(found.table(sort_by=f"self_{on}_time_total", row_limit=15, max_name_column_width=60))


def main() -> None:
    a = options(__doc__, device="cuda", rounds=5, small=False, json="", profile=False)
    began, bench = time.perf_counter(), Bench(a.device, a.rounds)
    sizes = ((500, 100), (2000, 10), (2000, 20)) if a.small else ((50_000, 1_000), (1_000_000, 10), (50_000, 100))
    wide, long, middle = (data(*size) for size in sizes)
    bench.panels(*wide, intervals=False)
    bench.panels(*long, intervals=True)
    bench.temperature(*wide)
    bench.linear(*middle)
    name = torch.cuda.get_device_name() if a.device == "cuda" else "CPU"
    print(f"\n{name}, torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print(table(HEAD, [(*row.cells(), row.verdict) for row in bench.rows], " r r"))
    print(f"\n{time.perf_counter() - began:.0f} s in all")
    if a.json:
        record = {**machine(PACKAGES), "device": name, "threads": torch.get_num_threads(), "rows": []}
        record["rows"] = [asdict(row) for row in bench.rows]
        Path(a.json).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    if a.profile:
        for job, sample in (("point panel, many classes", wide), ("point panel, many items", long)):
            where(job, partial(calibrant.evaluate, *bench.there(*sample), intervals=False))
        where("fit('temperature')", partial(calibrant.fit, "temperature", *bench.there(*wide)))


if __name__ == "__main__":
    main()
