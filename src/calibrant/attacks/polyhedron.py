"""Towards a target: the nearest point, inside the bounds, at which the linearised network has the target lead.

    min ‖δ‖₂   such that   g_k · δ ≥ h_k for all k ≠ t,      h_k = z_k − z_t,   g_k = ∇(z_t − z_k)

To leave a class one boundary must be crossed (`linear`), to reach one all of them, and the nearest such point may lie
where several meet. The dual has a λ_k ≥ 0 for each, with δ(λ) = clip(x + Σ λ_k g_k) − x. Newton's steps lead there,
each of them a quadratic of a few λ, which Hildreth's sweeps solve (1957). It costs a gradient for each boundary.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from calibrant.attacks.bounds import Bounds
from calibrant.attacks.field import Field
from calibrant.attacks.task import Task

NEWTON, SWEEPS, ROUNDS = 12, 40, 3
PUSH = 5e-4
"""Beyond every boundary, as a share of the highest: a point on them is no success."""
OUT_OF_REACH = 100.0
"""Boundaries are no farther than this many diagonals of the box: behind it is behind it, and λ stays a number."""


def candidates(field: Field, task: Task, clean: Tensor, classes: int, beyond: Tensor) -> tuple[Tensor, Tensor]:
    """From each origin, the nearest point beyond all boundaries, and `beyond` in margin; [N]: gradients looked at.

    Of the `classes` likeliest others by the `clean` logits. Where there are more, one of those may lead at that point;
    then once more beyond the likeliest of there, among which are those that bound it.
    """
    delta, count = torch.zeros_like(task.origin), torch.zeros_like(task.reference)
    rows, seen = torch.arange(len(delta), device=delta.device), clean
    for _ in range(ROUNDS):
        some = task.take(rows)
        others = some.likeliest(seen, classes)
        height = some.leads(clean[rows], others) + task.kappa + beyond[rows]
        _, gradient = field.gradient(some.origin, partial(some.leads, classes=others))
        delta[rows] = nearest(some.origin, height, gradient, task.bounds)
        count[rows] += len(others)
        # all there are; and dropout's masks are of all rows, not of some
        if len(others) == clean.shape[1] - 1 or field.drawn:
            break
        at = field.logits(task.bounds.clip(some.origin + delta[rows]))
        # where one of these leads, the network is no line, and another round would say the same
        again = ~some.succeeded(at) & ~(others == some.likeliest(at, 1)).any(0)
        if not bool(again.any()):
            break
        rows, seen = rows[again], at[again]
    return task.origin + delta, count


def nearest(origin: Tensor, height: Tensor, gradient: Tensor, bounds: Bounds) -> Tensor:
    """δ [N, …] from h [J, N] and ∇h = −g [J, N, …]; where the bounds leave no such point, what comes near to one."""
    x, g = origin.flatten(1), -gradient.flatten(2).transpose(0, 1)
    steepness = torch.linalg.vector_norm(g, dim=-1, keepdim=True).clamp_min(torch.finfo(g.dtype).tiny)
    g, far = g / steepness, OUT_OF_REACH * math.sqrt(x.shape[1]) * bounds.range
    h = (height + PUSH * height.amax(0).clamp_min(0.0)).T.to(g.dtype) / steepness[..., 0]
    h = h.clamp(-far, far).double()
    multiplier, whole = torch.zeros_like(h), (g @ g.mT).double()
    for number in range(NEWTON):
        aim = x + (multiplier.to(g.dtype)[:, None] @ g)[:, 0]
        free = g * ((aim > bounds.low) & (aim < bounds.high))[:, None]
        # every other step as if no pixel were stopped: never too far, and the way back for those that are
        curvature = (free @ g.mT).double() if number % 2 else whole
        short = h - (g @ (bounds.clip(aim) - x)[..., None])[..., 0].double()
        multiplier = _sweeps(curvature, short + (curvature @ multiplier[..., None])[..., 0], multiplier)
    return (bounds.clip(x + (multiplier.to(g.dtype)[:, None] @ g)[:, 0]) - x).reshape(origin.shape)


def _sweeps(curvature: Tensor, slope: Tensor, start: Tensor) -> Tensor:
    """The λ ≥ 0 of the least ½ λᵀHλ − bᵀλ, coordinate by coordinate: H [N, J, J], b [N, J]."""
    held, diagonal = start.clone(), curvature.diagonal(dim1=1, dim2=2)
    free = diagonal > 1e-9  # of one where no pixel is stopped; a class without a free one stays
    for _ in range(SWEEPS):
        for j in range(held.shape[1]):
            rest = slope[:, j] - (curvature[:, j] * held).sum(-1)
            moved = (held[:, j] + rest / diagonal[:, j]).clamp_min(0.0)
            held[:, j] = torch.where(free[:, j], moved, held[:, j])
    return held
