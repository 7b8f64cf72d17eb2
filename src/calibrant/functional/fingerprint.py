"""A content hash of predictions, computed on the device of the tensors. Equal labels and scores have equal hashes.

The bits of a row are read as words x_j of at most 32 bits and summed with two sets of fixed random weights,

    h_i = Σ_j w_ij · x_j  mod 2⁶⁴,   i = 1, 2     (multilinear hashing, Carter & Wegman 1979)

Two rows that differ have the same 128 bits with a probability of at most 2⁻⁶⁶. The fingerprint is SHA-256 over the bits
of all rows, in order. An accelerator reads its logits once and returns 16 bytes per row, and a stream is hashed batch
by batch. Integers wrap around in the same way everywhere, so the hash does not depend on the device.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from calibrant.functional.chunks import chunk_on

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int32}
"""Bytes per number → the integer type that its bits are read as."""
MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)  # SplitMix64's


class Fingerprint:
    """The hash of columns [N, …] in one or several batches of rows: `add` each batch, then call `hexdigest`."""

    def __init__(self) -> None:
        self._digest, self._head = hashlib.sha256(), ""

    def add(self, **columns: Tensor | None) -> Fingerprint:
        """Add the next rows; columns that are None are left out."""
        held = {name: c.detach() for name, c in columns.items() if c is not None}
        if not self._head:
            self._head = "".join(f"{name}{tuple(c.shape[1:])}{c.dtype}" for name, c in held.items())
            self._digest.update(self._head.encode())
        total, first = torch.zeros(2, dtype=torch.int64), 0
        for column in held.values():
            words = _words(column)
            total = total + _sums(words, first)
            first += words.shape[1]
        self._digest.update(total.numpy().tobytes())
        return self

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _words(column: Tensor) -> Tensor:
    """The bits of each row as integers [N, words]."""
    rows = column.reshape(len(column), -1).contiguous()
    return rows.view(WORDS[rows.element_size()])


def _sums(words: Tensor, first: int) -> Tensor:
    """The sums of each row with both sets of weights, [N, 2], on the CPU. Word j here is word first + j of the row."""
    size = words.shape[1]
    weights = [scrambled(2 * torch.arange(first, first + size) + i).to(words.device) for i in (0, 1)]
    parts = (part.long() for part in torch.split(words, max(1, chunk_on(words.device) // max(size, 1))))
    return torch.cat([torch.stack([(part * w).sum(1) for w in weights], 1) for part in parts]).cpu()


def scrambled(x: Tensor) -> Tensor:
    """SplitMix64 on int64, which wraps around like uint64. Its right shifts keep the sign, which mixes as well."""
    first, second, third = (value - (1 << 64) if value >> 63 else value for value in MIX)
    x = x + first
    x = (x ^ (x >> 30)) * second
    x = (x ^ (x >> 27)) * third
    return x ^ (x >> 31)
