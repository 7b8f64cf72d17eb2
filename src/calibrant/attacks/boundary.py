"""The end of a minimum-norm attack: a bisection to the boundary, in full precision, by forward passes alone.

    point(t) = clip(x + t·(best − x)),   the smallest t that the bisection finds with margin(point(t)) > 0

Logits change in their last digits with the batch that they are computed in, so a success must clear what rounding may
change (`rounding`); then the label flips in any batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.attacks.gradients import PixelModel
from calibrant.attacks.task import Task, spread

HALVINGS = 13
FARTHER = 2.0
"""Where to look for the success, as a multiple of the way, when there is none at `best`: half precision found it."""
UNIT = {torch.float64: 1e-11, torch.float32: 1e-5, torch.float16: 2**-9, torch.bfloat16: 2**-6}
TF32_UNIT = 2**-7
"""Share of the range of the logits that two forward passes may differ by. On CUDA some batch sizes get convolutions
that round to TF32 and others do not; of a ResNet-20 this moved margins by up to 0.64% of the range."""


def rounding(logits: Tensor, dtype: torch.dtype) -> Tensor:
    """[N]: how much a margin may change between two forward passes of a model of this precision."""
    unit = TF32_UNIT if logits.is_cuda and dtype == torch.float32 else UNIT.get(dtype, UNIT[torch.float32])
    spacing = 4 * torch.finfo(dtype).eps * logits.abs().amax(-1)
    return unit * (logits.amax(-1) - logits.amin(-1)) + spacing


def nearest(model: PixelModel, task: Task, best: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Points on the way from the origin to `best`, as near as the bisection gets, and whether they succeed."""

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
        there = succeeds(middle)
        low, high = torch.where(there, low, middle), torch.where(there, middle, high)
    return torch.where(spread(success, best), at(high), task.origin), success
