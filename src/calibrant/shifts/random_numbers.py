"""Counter-based random numbers: the number at a place depends only on (seed, shift, severity, item, place).

A shift must give an item the same noise alone, in any batch, on any device. A generator with a state cannot do that, so
the numbers are hashes: SplitMix64 (Steele, Lea, Flood 2014) of `key + place · γ`, in int64 tensor arithmetic, which
wraps the same way everywhere. Integers are identical on all devices; normal numbers are Box–Muller of them, equal up to
the rounding of log and cos.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor

from calibrant.errors import InputError

GAMMA = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer: 2⁶⁴ / φ, odd
FIRST = -4658895280553007687  # 0xBF58476D1CE4E5B9
SECOND = -7723592293110705685  # 0x94D049BB133111EB


def mix_(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, in place on int64. `>>` keeps the sign in torch, so the copied bits are masked off."""
    z ^= (z >> 30).bitwise_and_(0x3FFFFFFFF)
    z *= FIRST
    z ^= (z >> 27).bitwise_and_(0x1FFFFFFFFF)
    z *= SECOND
    z ^= (z >> 31).bitwise_and_(0x1FFFFFFFF)
    return z


@dataclass(frozen=True)
class Draws:
    """The random numbers of some items. Each `stream` of an item is a separate sequence, read from its beginning."""

    key: Tensor  # int64 [N], on the device of the images

    @property
    def n(self) -> int:
        return self.key.shape[0]

    def bits(self, count: int, stream: int) -> Tensor:
        """int64 [N, count], 64 random bits each."""
        jump = (stream * GAMMA + 2**63) % 2**64 - 2**63  # wrapped, as the tensors wrap
        start = mix_(self.key + jump)
        steps = torch.arange(1, count + 1, device=self.key.device) * GAMMA
        return mix_(start[:, None] + steps)

    def uniform(self, *shape: int, stream: int = 0) -> Tensor:
        """float32 [N, *shape] in (0, 1): multiples of 2⁻²⁴ plus half a step. Two of them from 64 bits."""
        count = math.prod(shape)
        halves = self.bits(-(-count // 2), stream).view(torch.int32)[:, :count]
        top = (halves >> 8).bitwise_and_(0xFFFFFF).to(torch.float32)
        return top.add_(0.5).mul_(2.0**-24).reshape(self.n, *shape)

    def normal(self, *shape: int, stream: int = 0) -> Tensor:
        """float32 [N, *shape], standard normal: two from each pair of uniforms (Box–Muller)."""
        count = math.prod(shape)
        pair = self.uniform(-(-count // 2), 2, stream=stream)
        radius = pair[..., 0].log().mul_(-2.0).sqrt_()
        angle = pair[..., 1] * (2 * math.pi)
        out = torch.cat((radius * angle.cos(), radius * angle.sin()), dim=1)
        return out[:, :count].reshape(self.n, *shape)

    def between(self, low: float, high: float, *shape: int, stream: int = 0) -> Tensor:
        """float32 [N, *shape], uniform in (low, high)."""
        return self.uniform(*shape, stream=stream).mul_(high - low).add_(low)

    def integers(self, low: int, high: int, *shape: int, stream: int = 0) -> Tensor:
        """int64 [N, *shape], uniform in low … high − 1."""
        return self.uniform(*shape, stream=stream).mul_(high - low).to(torch.int64).add_(low)


def draws(
    rng: torch.Generator | int, name: str, level: int, n: int, device: torch.device, index: Tensor | int | None = None
) -> Draws:
    """The numbers of items `index` for one shift at one level.

    Only the initial seed of a generator is used (`initial_seed`). It is not advanced, so the order of calls does not
    matter. `index` says which items these are: their numbers [N], the number of the first one, or None for 0 … N − 1.
    """
    if not isinstance(rng, torch.Generator | Integral):
        raise InputError(f"a seed is a whole number or a torch.Generator, not {rng!r}")
    seed = rng.initial_seed() if isinstance(rng, torch.Generator) else int(rng)
    digest = hashlib.sha256(f"calibrant shift {seed} {name} {level}".encode()).digest()
    base = int.from_bytes(digest[:8], "big", signed=True)
    return Draws(mix_(item_numbers(index, n, device) * GAMMA + base))


def item_numbers(index: Tensor | int | None, n: int, device: torch.device) -> Tensor:
    """int64 [N] on the device."""
    if not isinstance(index, Tensor):
        first = 0 if index is None else int(index)
        return torch.arange(first, first + n, device=device)
    if index.shape != (n,) or index.is_floating_point() or index.dtype == torch.bool:
        raise InputError(
            f"index must name the {n} items by whole numbers, one each; got {index.dtype} {tuple(index.shape)}"
        )
    return index.to(device=device, dtype=torch.int64)
