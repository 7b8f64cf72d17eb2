"""How many numbers are processed at a time: small enough for the cache of a CPU, large enough for an accelerator."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 1 << 19
"""Numbers in a chunk on a CPU: 4 MiB of float64, which stay in the cache from one operation to the next."""
DEVICE_CHUNK = 1 << 26
"""The same on an accelerator, where starting an operation costs more than the cache saves: 512 MiB of float64."""


def chunk_on(device: torch.device) -> int:
    """Numbers in a chunk on this device; on the CPU one chunk for every thread, so that there are fewer barriers."""
    return CHUNK * torch.get_num_threads() if device.type == "cpu" else DEVICE_CHUNK


def row_chunks(logits: Tensor, chunk: int | None = None) -> list[slice]:
    """The items of [N, K] or [M, N, K] in slices of about `chunk` numbers each."""
    n = int(logits.shape[-2])
    rows = max(1, (chunk or chunk_on(logits.device)) * n // max(1, logits.numel()))
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
