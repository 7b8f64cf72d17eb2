"""cutmix (Yun 2019): a box of another image replaces the same box of an image, and q is mixed by the area.

λ ~ Beta(α, α). The box has sides √(1 − λ)·(H, W) around a uniform centre and is cut off at the border, so the weight of
q is the area that remained. `probability` is the share of batches that are mixed (0.5 on CIFAR in the paper).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.errors import InputError
from calibrant.functional.settings import number
from calibrant.transforms.mixup import Mixing, beta, mix, permutation


@dataclass(frozen=True)
class CutMix(Mixing):
    """A box of another image, and its share of the target (Yun 2019)."""

    alpha: float = 1.0
    probability: float = 1.0

    def __post_init__(self) -> None:
        if not (number("alpha", self.alpha) >= 0 and 0 <= number("probability", self.probability) <= 1):
            raise InputError(
                f"alpha must be 0 or more and probability in [0, 1], got {self.alpha} and {self.probability}"
            )

    def mixed(self, x: Tensor, q: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return one batch of images and soft targets, mixed; also for your own training loop."""
        if self.alpha == 0 or self.probability == 0:
            return x, q
        self.check(x, q)
        if x.ndim != 4:
            raise InputError(f"cutmix cuts images [N, C, H, W], got {tuple(x.shape)}; use mixup")
        height, width = x.shape[-2:]
        kept = beta(self.alpha, 1, rng)
        draws = torch.rand(3, generator=rng, device=rng.device, dtype=torch.float64)
        kept = torch.where(draws[2] < self.probability, kept, 1.0)
        other = permutation(x.shape[0], rng).to(x.device)
        rows = inside(height, draws[0], kept)
        columns = inside(width, draws[1], kept)
        box = (rows[:, None] & columns[None, :]).to(x.device)
        remained = 1 - box.double().mean()
        return torch.where(box, x[other], x), mix(q, q[other], remained)


def inside(length: int, centre: Tensor, kept: Tensor) -> Tensor:
    """Return which pixels are inside the box of side length·√(1 − λ) around `centre` (in [0, 1)): bool [length]."""
    middle, half = (centre * length).floor(), ((1 - kept).sqrt() * length / 2).floor()
    pixel = torch.arange(length, device=centre.device)
    return (pixel >= middle - half) & (pixel < middle + half)
