"""Every random stream of a run, derived from its seed and its purpose.

    stream(seed, "order", member, epoch)

No stream has to be saved, because a killed run repeats its epoch with the same numbers. Dropout draws from torch's
global generators; `seeded_generators` seeds them and restores them afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed: the start of sha256 over the run's seed and the purpose."""
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(device: torch.device | str, seed: int, *purpose: str | int) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(stream(seed, *purpose))


@contextmanager
def seeded_generators(device: torch.device, seed: int, *purpose: str | int) -> Iterator[None]:
    """Seed the global generators (CPU and the device's) inside, and restore them afterwards."""
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        # torch.manual_seed would also reseed devices that this run does not use
        torch.default_generator.manual_seed(stream(seed, *purpose))
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(stream(seed, *purpose))
        yield
