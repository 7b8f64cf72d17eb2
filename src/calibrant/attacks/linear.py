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
STEEPER = 2.0
"""How much steeper than the likelier classes a less likely one may be and still not be looked at, if only that would
make it the nearest. Of a ResNet-20's images two in three are looked at again. With 1.5 DDN was up to a tenth too long
on linear networks whose classes differ much in steepness (7 of 1,800 items by more than a hundredth; with 2 none)."""


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
    [N] (`classes`: how many, and how many at most); [N]: of how many. Towards a target the nearest point beyond those
    of `most` together.
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
    delta, far, steepest = _look(field, task, others[:few], size[:few])
    count = torch.full_like(task.reference, min(few, len(others)))
    if few < len(others):
        again = (size[few] < STEEPER * steepest * torch.minimum(far, within)).nonzero().squeeze(1)
        if n := len(again):
            rows = field.filled(again, len(task.origin))
            other, there, _ = _look(field, task.take(rows), others[few:, rows], size[few:, rows])
            nearer = there[:n] < far[again]
            delta[again] = torch.where(spread(nearer, other[:n]), other[:n], delta[again])
            count[again] = len(others)
    return task.origin + delta, count


def _look(field: Field, task: Task, others: Tensor, height: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """δ to the nearest boundary of these classes, how far it is, and the largest ‖∇h_k‖ there."""
    _, gradient = field.gradient(task.origin, lambda z: task.leads(z, others))
    steepest = torch.linalg.vector_norm(gradient.flatten(2), dim=-1).amax(0)
    return *inside(task.origin, height, gradient, task.bounds), steepest
