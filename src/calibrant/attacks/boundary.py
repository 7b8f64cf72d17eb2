"""The last step of a minimum-norm attack: bisect between the input and the best success, in full precision.

    point(t) = clip(x + t·(best − x)),   the smallest t that the bisection finds with margin(point(t)) > 0

The last digits of logits depend on the batch in which they are computed. A success must therefore exceed the possible
rounding error (`rounding`), so that the label flips in every batch. The bisection needs forward passes only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.attacks.gradients import PixelModel
from calibrant.attacks.task import Task, spread

HALVINGS = 13
FARTHER = 2.0
"""The search extends to this t when `best` is no success in full precision, because half precision found it."""
UNIT = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}
TF32_UNIT = 2**-7
"""Largest difference between two forward passes, as a share of the range of the logits.

On CUDA, convolutions round to TF32 for some batch sizes only; this moved the margins of a ResNet-20 by up to 0.64%."""


def rounding(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """Return how much each margin may change between two forward passes in this precision: [N]."""
    unit = TF32_UNIT if logits.is_cuda and dtype == torch.float32 else UNIT.get(dtype, UNIT[torch.float32])
    spacing = 4 * torch.finfo(dtype).eps * logits.abs().amax(-1)
    return unit * (logits.amax(-1) - logits.amin(-1)) + spacing


def bisect(model: PixelModel, task: Task, best: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Return the nearest successful point between the origin and `best` [N, …], and whether there is one [N]."""

    def at(t: Tensor) -> Tensor:
        return task.bounds.clip(task.origin + spread(t, best) * (best - task.origin))

    def succeeds(t: Tensor) -> Tensor:
        return task.margin(model.logits(at(t), batch)) > 0

    low = torch.zeros(len(best), dtype=best.dtype, device=best.device)
    high = low + 1
    success = succeeds(high)
    if not bool(success.all()):
        low, high = torch.where(success, low, high), torch.where(success, high, FARTHER)
        success = succeeds(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        flipped = succeeds(middle)
        low, high = torch.where(flipped, low, middle), torch.where(flipped, middle, high)
    return torch.where(spread(success, best), at(high), task.origin), success
