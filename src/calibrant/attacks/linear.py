"""The network linearised at a point: which boundary is the nearest there, and the step that reaches it.

    h_k = z_k − z_r,   l = argmin_k |h_k| / ‖∇h_k‖₂,   δ = |h_l| / ‖∇h_l‖₂² · ∇h_l

over the classes with the largest logits, a backward pass each. DeepFool is made of such steps. The other minimum-norm
attacks take the nearest boundary *inside the bounds* as a second candidate, because an objective that climbs the
likeliest class may miss a nearer one:

    δ_k = clip(x + λ_k ∇h_k) − x  with  ∇h_k · δ_k = |h_k|,   l = argmin_k ‖δ_k‖₂

On a linear network that is the minimum itself. λ_k is the root of a concave, piecewise linear function, which Newton's
steps reach from below after a few.
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.attacks import polyhedron
from calibrant.attacks.bounds import Bounds
from calibrant.attacks.field import Field
from calibrant.attacks.task import Task, spread

NEWTON = 4
REACHED = 0.999
"""Share of the way to a boundary that is all of it but for rounding."""
NEARLY = 1.25
"""A boundary further down the ranks is looked at if it seems within this many times what is held (`_together`). Of
9,000 items of linear networks whose classes differ much in steepness 1 loses none, and 0.85 every fifth that matters;
of a ResNet-20's images every fourth is looked at again."""


def heights(task: Task, logits: Tensor, classes: int) -> Tensor:
    """h_k of the `classes` likeliest others, [J, N]; towards a target there is one boundary, the target's own."""
    if task.targeted:
        return task.margin(logits)[None]
    return task.leads(logits, task.likeliest(logits, classes)) - task.kappa


def step(height: Tensor, gradient: Tensor, push: float) -> Tensor:
    """δ [N, …] from h [J, N] and ∇h [J, N, …]; `push` is added to |h|: beyond the boundary, not on it."""
    size = height.abs().to(gradient.dtype)
    steepness = gradient.flatten(2).square().sum(-1).clamp_min(torch.finfo(gradient.dtype).tiny)
    nearest = (size / steepness.sqrt()).argmin(0)
    rows = torch.arange(len(nearest), device=nearest.device)
    chosen = gradient[nearest, rows]
    return spread((size + push)[nearest, rows] / steepness[nearest, rows], chosen) * chosen


def inside(origin: Tensor, height: Tensor, gradient: Tensor, bounds: Bounds) -> tuple[Tensor, Tensor]:
    """δ [N, …] to the boundary that is the nearest when pixels stop at the bounds, from how far each is: |h| [J, N].

    And how far that is, [N]: where a bound stops δ before the boundary, in proportion more than ‖δ‖₂.
    """
    x, g = origin.flatten(1), gradient.flatten(2)
    size, tiny = height.to(g.dtype), torch.finfo(g.dtype).tiny
    factor, slope = torch.zeros_like(size), g.square().sum(-1)
    gained = torch.zeros_like(size)
    moved = torch.zeros_like(g)
    for _ in range(NEWTON):
        # who cannot move any farther stays
        factor = factor + torch.where(slope > tiny, (size - gained) / slope.clamp_min(tiny), 0.0)
        aim = x + factor[..., None] * g
        moved = bounds.clip(aim) - x
        gained = (moved * g).sum(-1)
        slope = torch.where((aim > bounds.low) & (aim < bounds.high), g, 0.0).square().sum(-1)
    reached = gained / size.clamp_min(tiny)
    # flat, or every pixel at its bound before the boundary: no way there, and not a short one
    possible = (gained > 0) & ((slope > tiny) | (reached > REACHED))
    far = torch.where(possible, torch.linalg.vector_norm(moved, dim=-1) / reached, torch.inf)
    far, nearest = far.min(0)
    rows = torch.arange(len(nearest), device=nearest.device)
    return moved[nearest, rows].reshape(origin.shape), far


def candidates(
    field: Field, task: Task, clean: Tensor, classes: tuple[int, int], batch: int, beyond: Tensor, within: Tensor
) -> tuple[Tensor, Tensor]:
    """From each origin, the nearest boundary by the linear model, and `beyond` in margin; [N, …] inside the bounds.

    Of the likeliest others by the `clean` logits, and of more where one of these may be nearer still and `within` reach
    [N] (`classes`: how many, and how many at most); [N]: by how many gradients. Towards a target the nearest point
    beyond those of `most` together.
    """
    points, looked = [], []
    for part in torch.split(torch.arange(len(task.origin), device=task.origin.device), batch):
        rows = field.filled(part, batch)
        some, logits, past = task.take(rows), clean[rows], beyond[rows]
        if task.targeted:
            point, count = polyhedron.candidates(field, some, logits, classes[1], past)
        else:
            point, count = _away(field, some, logits, classes, past, within[rows])
        points.append(point[: len(part)])
        looked.append(count[: len(part)])
    return torch.cat(points), torch.cat(looked)


def _away(
    field: Field, task: Task, clean: Tensor, classes: tuple[int, int], beyond: Tensor, within: Tensor
) -> tuple[Tensor, Tensor]:
    few, most = classes
    others = task.likeliest(clean, most)
    size = (task.leads(clean, others) - task.kappa).abs() + beyond
    first, rest = others[:few], others[few:]
    _, gradient = field.gradient(
        task.origin, lambda z: torch.cat([task.leads(z, first), *_together(task, z, rest, size[few:])])
    )
    delta, far = inside(task.origin, size[:few], gradient[: len(first)], task.bounds)
    count = torch.full_like(task.reference, len(gradient))
    if len(rest):
        steepness = torch.linalg.vector_norm(gradient[-1].flatten(1), dim=1)
        again = (size[few:].amin(0) < NEARLY * steepness * torch.minimum(far, within)).nonzero().squeeze(1)
        if n := len(again):
            rows = field.filled(again, len(task.origin))
            some = task.take(rows)
            _, gradient = field.gradient(some.origin, lambda z: some.leads(z, rest[:, rows]))
            other, there = inside(some.origin, size[few:, rows], gradient, task.bounds)
            nearer = there[:n] < far[again]
            delta[again] = torch.where(spread(nearer, other[:n]), other[:n], delta[again])
            count[again] += len(rest)
    return task.origin + delta, count


def _together(task: Task, logits: Tensor, classes: Tensor, size: Tensor) -> list[Tensor]:
    """One objective [1, N] of all classes [J, N], if there are any, by which one gradient tells whether any is near:

        ‖Σ_k ± ∇h_k / |h_k|‖  ≳  max_k ‖∇h_k‖ / |h_k|  =  1 / the distance of the nearest

    times the smallest |h_k|. With signs in turn the gradient of the class that is left, which all have in common, falls
    out for the most part.
    """
    if not len(classes):
        return []
    signs = 1 - 2 * (torch.arange(len(classes), device=classes.device)[:, None] % 2)
    weight = signs * size.amin(0) / size.clamp_min(torch.finfo(size.dtype).tiny)
    return [(weight * task.leads(logits, classes)).sum(0, keepdim=True)]
