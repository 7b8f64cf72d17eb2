"""The end of every attack, in full precision: does the label flip, and how near to the origin on the way there.

Steps may have run in reduced precision, and a success is what a fresh forward pass calls one; so the last word is said
here. A minimum-norm attack then bisects the segment from the origin (no success) to its best point (success): forward
passes only. A point counts when its margin exceeds the noise between one forward pass and the next, which depends on
the batch size that kernels are chosen for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.attacks.field import Field
from calibrant.attacks.task import Task, spread

HALVINGS = 10
OVERSHOOT = (1.0, 1.01, 1.05, 1.2)
"""How far beyond a point found in reduced precision a success in full precision is looked for."""


def settle(field: Field, task: Task, best: Tensor, last: Tensor, batch: int, *, search: bool) -> tuple[Tensor, Tensor]:
    """Points and whether they succeed: with `search` the nearest on the way to `best`, else `last`, else `best`."""
    points, successes = [], []
    for start in range(0, len(best), batch):
        part = slice(start, start + batch)
        rows = task.take(part)
        point, success = _bisected(field, rows, best[part]) if search else _checked(field, rows, best[part], last[part])
        points.append(point)
        successes.append(success)
    return torch.cat(points), torch.cat(successes)


def noise(device: torch.device) -> float:
    """Relative error of logits between two forward passes: float32, or TF32 where convolutions may use it."""
    return 1e-3 if device.type == "cuda" and torch.backends.cudnn.allow_tf32 else 1e-5


def _checked(field: Field, task: Task, best: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """The last point; where it is no success but an earlier one was, that one."""
    slack = noise(best.device)
    at_last = task.succeeded(field.logits(last), slack)
    at_best = task.succeeded(field.logits(best), slack)
    return torch.where(spread(~at_last & at_best, best), best, last), at_last | at_best


def _bisected(field: Field, task: Task, best: Tensor) -> tuple[Tensor, Tensor]:
    slack, delta = noise(best.device), best - task.origin

    def at(t: Tensor) -> Tensor:
        return task.bounds.clip(task.origin + spread(t, delta) * delta)

    high = torch.full((len(best),), OVERSHOOT[-1], dtype=best.dtype, device=best.device)
    success = torch.zeros(len(best), dtype=torch.bool, device=best.device)
    for reach in OVERSHOOT:
        t = torch.full_like(high, reach)
        hit = task.succeeded(field.logits(at(t)), slack) & ~success
        high, success = torch.where(hit, t, high), success | hit
        if reach == 1.0 and bool(success.all()):
            break
    low = torch.zeros_like(high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        hit = task.succeeded(field.logits(at(middle)), slack)
        low, high = torch.where(hit, low, middle), torch.where(hit, middle, high)
    point = torch.where(spread(success, best), at(high), best)
    return point, success
