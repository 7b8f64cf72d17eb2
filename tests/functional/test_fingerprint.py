"""The content hash against Python integers. Every change of the content changes it."""

from __future__ import annotations

import hashlib
import struct

import pytest
import torch
from torch import Tensor

from calibrant.functional.fingerprint import Fingerprint
from calibrant.types import Predictions

MASK = (1 << 64) - 1


def splitmix(x: int) -> int:
    """SplitMix64 on a signed 64-bit word, where shifts keep the sign."""

    def signed(v: int) -> int:
        return (v & MASK) - (1 << 64) if v & (1 << 63) else v & MASK

    x = signed(x + 0x9E3779B97F4A7C15)
    x = signed((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9)
    x = signed((x ^ (x >> 27)) * 0x94D049BB133111EB)
    return x ^ (x >> 31)


def naive(z: Tensor, y: Tensor) -> str:
    digest = hashlib.sha256(f"labels(){y.dtype}logits{tuple(z.shape[1:])}{z.dtype}".encode())
    for row, label in zip(z.double().tolist(), y.tolist(), strict=True):
        words = struct.unpack("<2i", struct.pack("<q", label)) + struct.unpack(
            f"<{len(row)}i", struct.pack(f"<{len(row)}f", *row)
        )
        for i in (0, 1):
            total = sum(splitmix(2 * j + i) * word for j, word in enumerate(words)) & MASK
            digest.update(struct.pack("<Q", total))
    return digest.hexdigest()


def sample(n: int = 40, k: int = 7, dtype: torch.dtype = torch.float32) -> Predictions:
    g = torch.Generator().manual_seed(n * k)
    return Predictions(torch.randint(k, (n,), generator=g), torch.randn(n, k, generator=g).to(dtype))


@pytest.mark.parametrize("n, k", [(1, 2), (40, 7), (3, 1000)])
def test_sums_of_words_and_sha256_of_them(n: int, k: int) -> None:
    p = sample(n, k)
    assert p.logits is not None
    p.logits[0, :2] = torch.tensor([-0.0, -torch.inf])
    assert p.fingerprint() == naive(p.logits, p.labels)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_batches_and_layouts_do_not_matter_and_any_change_does(dtype: torch.dtype) -> None:
    p = sample(dtype=dtype)
    y, z = p.labels, p.logits
    assert z is not None
    parts = Fingerprint().add(labels=y[:13], logits=z[:13]).add(labels=y[13:], logits=z[13:])
    assert p.fingerprint() == parts.hexdigest() == Predictions(y, z.T.contiguous().T).fingerprint()
    seen = {p.fingerprint()}
    width = 8 * z.element_size()
    bits = z.view({16: torch.int16, 32: torch.int32, 64: torch.int64}[width])
    for place in range(width):
        changed = bits.clone()
        changed[17, 3] ^= -(1 << place) if place == width - 1 else 1 << place
        seen.add(Predictions(y, changed.view(dtype)).fingerprint())
    swapped, other = z[:, [1, 0, *range(2, 7)]], y.clone()
    other[5] += 1
    seen |= {
        q.fingerprint()
        for q in (
            Predictions(y, swapped),
            Predictions(other, z),
            Predictions(y.flip(0), z.flip(0)),
            Predictions(y[:-1], z[:-1]),
            Predictions(y, z.to(torch.float32 if dtype != torch.float32 else torch.float64)),
            Predictions(y, z[None].repeat(2, 1, 1)),
            Predictions(y, z, predicted=y),
        )
    }
    assert len(seen) == 1 + width + 7


def test_numbers_with_many_zero_bits_are_told_apart() -> None:
    """Small whole numbers in float64 differ in their upper bits alone."""
    z = torch.cartesian_prod(*[torch.arange(4.0)] * 4).double()
    y = torch.zeros(1, dtype=torch.long)
    assert len({Predictions(y, row[None]).fingerprint() for row in z}) == len(z)
