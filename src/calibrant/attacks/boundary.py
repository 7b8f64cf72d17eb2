"""The end of every attack, in full precision: does the label flip, and how near to the origin on the way there.

Steps may have run in reduced precision, and a success is what a fresh forward pass calls one; so the last word is said
here. A minimum-norm attack then looks for the root of the margin between the origin (no success) and its best point
(success), by the Illinois form of regula falsi: forward passes only. A point counts when its margin exceeds the noise
between one forward pass and the next, which depends on the batch size that kernels are chosen for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.attacks.field import Field
from calibrant.attacks.task import Task, spread

EVALUATIONS = 7
OVERSHOOT = (1.0, 1.01, 1.05, 1.2)
"""How far beyond a point found in reduced precision a success in full precision is looked for."""


def settle(field: Field, task: Task, best: Tensor, last: Tensor, batch: int, *, search: bool) -> tuple[Tensor, Tensor]:
    """Points and whether they succeed: with `search` the nearest on the way to `best`, else `last`, else `best`."""
    points, successes = [], []
    for start in range(0, len(best), batch):
        part = slice(start, start + batch)
        rows = task.take(part)
        point, success = _nearest(field, rows, best[part]) if search else _checked(field, rows, best[part], last[part])
        points.append(point)
        successes.append(success)
    return torch.cat(points), torch.cat(successes)


def noise(device: torch.device, dtype: torch.dtype) -> float:
    """Error of logits between two forward passes, in units of their spread: float32's, or TF32's where allowed."""
    if dtype == torch.float64:
        return 1e-12
    return 1e-3 if device.type == "cuda" and torch.backends.cudnn.allow_tf32 else 1e-5


def _checked(field: Field, task: Task, best: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """The last point; where it is no success but an earlier one was, that one."""
    slack = noise(best.device, field.dtype)
    at_last = task.clearance(field.logits(last), slack) > 0
    at_best = task.clearance(field.logits(best), slack) > 0
    return torch.where(spread(~at_last & at_best, best), best, last), at_last | at_best


def _nearest(field: Field, task: Task, best: Tensor) -> tuple[Tensor, Tensor]:
    slack, delta = noise(best.device, field.dtype), best - task.origin

    def at(t: Tensor) -> Tensor:
        return task.bounds.clip(task.origin + spread(t, delta) * delta)

    def clearance(t: Tensor) -> Tensor:
        return task.clearance(field.logits(at(t)), slack).to(best.dtype)

    low = torch.zeros(len(best), dtype=best.dtype, device=best.device)
    high, below = torch.ones_like(low), clearance(low)
    above = clearance(high)
    success = above > 0
    for reach in OVERSHOOT[1:] if not bool(success.all()) else ():
        t = torch.full_like(high, reach)
        there = clearance(t)
        hit = ~success & (there > 0)
        high, above, success = torch.where(hit, t, high), torch.where(hit, there, above), success | hit
    side = torch.zeros_like(low)
    for _ in range(EVALUATIONS):
        # the root of the chord, but never at an end of the interval, where it would stand still
        chord = high - above * (high - low) / (above - below)
        t = torch.minimum(torch.maximum(chord, low + 0.01 * (high - low)), high - 0.002 * (high - low))
        there = clearance(t)
        hit = there > 0
        below = torch.where(hit, torch.where(side > 0, below / 2, below), there)
        above = torch.where(hit, there, torch.where(side < 0, above / 2, above))
        low, high = torch.where(hit, low, t), torch.where(hit, t, high)
        side = torch.where(hit, 1.0, -1.0)
    return torch.where(spread(success, best), at(high), best), success
