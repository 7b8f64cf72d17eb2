"""How many numbers are processed at a time: few enough for the cache of a CPU, enough to keep an accelerator busy."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 1 << 19
"""Numbers in a chunk on a CPU: 4 MiB of float64, which stay in the cache from one operation to the next."""
DEVICE_CHUNK = 1 << 26
"""Numbers in a chunk on an accelerator (512 MiB of float64), where starting operations is what costs."""


def chunk_on(device: torch.device) -> int:
    """Numbers in a chunk on this device; on the CPU, one CHUNK for each thread."""
    return CHUNK * torch.get_num_threads() if device.type == "cpu" else DEVICE_CHUNK


def row_chunks(logits: Tensor, chunk: int | None = None, items: int | None = None) -> list[slice]:
    """Slices of the items of [N, K] or [M, N, K], or of `items` such items, with about `chunk` numbers each."""
    n = int(logits.shape[-2]) if items is None else items
    rows = max(1, (chunk or chunk_on(logits.device)) // max(1, logits[..., :1, :].numel()))
    return [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
