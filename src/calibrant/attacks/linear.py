"""The network linearised at a point: which boundary is the nearest there, and the step that reaches it.

    h_k = z_k − z_r,   l = argmin_k |h_k| / ‖∇h_k‖₂,   δ = |h_l| / ‖∇h_l‖₂² · ∇h_l

over the classes with the largest logits, a backward pass each. DeepFool is made of such steps; the other minimum-norm
attacks take one as a second candidate, because an objective that climbs the likeliest class may miss a nearer boundary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.attacks.field import Field
from calibrant.attacks.task import Task, spread


def heights(task: Task, logits: Tensor, classes: int) -> Tensor:
    """h_k of the `classes` likeliest others, [J, N]; towards a target there is one boundary, the target's own."""
    if task.targeted:
        return task.margin(logits)[None]
    others = logits.scatter(-1, task.reference[:, None], -torch.inf)
    top = others.topk(min(classes, logits.shape[1] - 1), -1).values
    return (top - logits.gather(-1, task.reference[:, None])).T


def step(height: Tensor, gradient: Tensor, push: float) -> Tensor:
    """δ [N, …] from h [J, N] and ∇h [J, N, …]; `push` is added to |h|: beyond the boundary, not on it."""
    size = height.abs().to(gradient.dtype)
    steepness = gradient.flatten(2).square().sum(-1).clamp_min(torch.finfo(gradient.dtype).tiny)
    nearest = (size / steepness.sqrt()).argmin(0)
    rows = torch.arange(len(nearest), device=nearest.device)
    chosen = gradient[nearest, rows]
    return spread((size + push)[nearest, rows] / steepness[nearest, rows], chosen) * chosen


def candidates(field: Field, task: Task, classes: int, batch: int) -> Tensor:
    """From each origin, the nearest boundary by the linear model, [N, …] inside the bounds."""
    points = []
    for start in range(0, len(task.origin), batch):
        part = task.take(slice(start, start + batch))
        logits, gradient = field.gradient(part.origin, lambda z, rows=part: heights(rows, z, classes))  # type: ignore[misc]
        points.append(task.bounds.clip(part.origin + step(heights(part, logits, classes), gradient, 0.0)))
    return torch.cat(points)
