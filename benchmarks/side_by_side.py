"""What benchmarks share: timing several sides in turns, options from defaults, the machine, Markdown tables."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch

Call = Callable[[], Any]


def options(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """The options of a script: one `--name` per default, of the default's type. Its docstring is the help text."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        how: dict[str, Any] = {"default": default, "help": f"default: {default}"}
        if default is False:
            how = {"action": "store_true"}
        elif isinstance(default, list):
            how |= {"nargs": "*", "type": type(default[0])}
        elif default is not None:
            how["type"] = type(default)
        parser.add_argument(f"--{name.replace('_', '-')}", **how)
    return parser.parse_args()


def timed(call: Call, device: str = "cpu", clock: Callable[[], float] | None = None) -> tuple[Any, float]:
    """(result of a call, its seconds): processor time on a CPU, which other processes do not change, and on CUDA the
    time until the device is done."""
    clock = clock or (time.perf_counter if device == "cuda" else time.process_time)
    wait(device)
    start = clock()
    out = call()
    wait(device)
    return out, max(clock() - start, 1e-9)


def seconds(call: Call, device: str = "cpu", clock: Callable[[], float] | None = None) -> float:
    return timed(call, device, clock)[1]


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def in_turns(calls: Sequence[Call], rounds: int, device: str = "cpu", **how: Any) -> list[list[float]]:
    """The seconds of each call in every round, after a warm-up. A busy machine slows down all calls of a round."""
    for call in calls:
        call()
    found = [[seconds(call, device, **how) for call in calls] for _ in range(rounds)]
    return [list(side) for side in zip(*found, strict=True)]


def ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """The median over rounds of the ratio."""
    return median(a / b for a, b in zip(over, under, strict=True))


def machine(packages: Iterable[str]) -> dict[str, Any]:
    """Today's date, this machine, its load, and the versions of Python and of the packages that are installed."""
    info = Path("/proc/cpuinfo")
    names = [x for x in info.read_text().splitlines() if x.startswith("model name")] if info.exists() else []
    model = names[0].split(":")[1].strip() if names else platform.processor()
    found = {}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return {
        "date": date.today().isoformat(),
        "machine": f"{model}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "versions": {"python": platform.python_version(), **found},
    }


def flagged(percent: float) -> str:
    """A coverage of nominal 95% intervals, marked where it is below 90% or above 99%."""
    mark = "" if 90 <= percent <= 99 else " ⚠" if percent < 90 else " ↑"
    return f"{percent:.1f}{mark}"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], right: str = "") -> str:
    """A Markdown table; `right` has the letter r at the place of each right-aligned column."""
    rule = ["---:" if side == "r" else "---" for side in right.ljust(len(head))]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, rule, *rows))
