"""How many threads a training on the CPU is worth: on tiny batches, waiting for the second costs more than it gives.

The number is in `RUN/environment.json`: sums depend on it in their last bits, so a run goes on with the threads it was
begun with. It follows from the sizes alone, never from how busy the machine is, for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from calibrant.files import sealed

FEW_NUMBERS = 1 << 16
"""Numbers in a batch below which one thread is as fast: digits at batch 64 have 4,096, CIFAR at 128 has 393,216."""


@contextmanager
def enough_threads(
    shape: Sequence[int], batch: int, device: torch.device | str, begun_with: int | None = None
) -> Iterator[None]:
    """One thread inside for a small problem on the CPU, or as many as it was begun with; as before outside."""
    before = torch.get_num_threads()
    small = torch.device(device).type == "cpu" and math.prod(shape) * batch < FEW_NUMBERS
    torch.set_num_threads(begun_with or (1 if small else before))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_of(run: Path) -> int | None:
    """Threads that the run in this folder was begun with, where it says."""
    there = run / "environment.json"
    found = sealed.read(there).get("threads") if there.is_file() else None
    return found if isinstance(found, int) and found > 0 else None
