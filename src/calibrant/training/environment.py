"""The environment that a number was computed in: versions, device, commit, threads. Every run and cell stores it.

The number of CPU threads changes sums in their last bits, so a run resumes with the number it started with, as recorded
in `RUN/environment.json`. For the same reason the number of threads depends on sizes only, not on the machine's load.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from calibrant.files import hashed
from calibrant.provenance import commit

PACKAGES = ("calibrant", "torch", "numpy", "lightning", "safetensors")

SMALL_BATCH = 1 << 16
"""Below this many numbers per batch, one thread is as fast: digits at batch 64 have 4,096, CIFAR at 128 has 393,216."""


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Versions, machine, threads and commit; no host, user or folder names."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "device": device_name(device),
        "cuda": torch.version.cuda if torch.device(device).type == "cuda" else None,
        "threads": torch.get_num_threads(),
        "commit": commit(),
    }


def device_name(device: torch.device | str) -> str:
    where = torch.device(device)
    return torch.cuda.get_device_name(where) if where.type == "cuda" else where.type


@contextmanager
def enough_threads(
    shape: Sequence[int], batch: int, device: torch.device | str, recorded: int | None = None
) -> Iterator[None]:
    """Inside: the recorded number of threads, or one if the problem is small and on the CPU. Restored afterwards."""
    small = torch.device(device).type == "cpu" and math.prod(shape) * batch < SMALL_BATCH
    with threads(recorded or (1 if small else torch.get_num_threads())):
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Inside, torch has this many threads. Restored afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def recorded_threads(run: Path) -> int | None:
    """The number of threads that the run in this folder started with, if it is recorded."""
    record = run / "environment.json"
    threads = hashed.read(record).get("threads") if record.is_file() else None
    return threads if isinstance(threads, int) and threads > 0 else None


@cache
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
