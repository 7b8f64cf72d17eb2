"""A second candidate for minimum-norm attacks: the nearest boundary of the network linearised at the input.

An objective that climbs the likeliest class may miss a nearer boundary (`linear`; towards a target `polyhedron`). What
lies there is looked at by forward passes in full precision, and only what is nearer than the attack's own success is
searched along.
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.attacks import linear
from calibrant.attacks.field import Field
from calibrant.attacks.task import Task, norms, spread

Found = tuple[Tensor, Tensor]
"""Points, and which of them are successes."""
NEARER = 0.999
"""Share of the distance within which a second candidate is looked for; a search for less is not worth its passes."""
RIGHT_BEYOND = 1.001
"""Of the way to a linear model's boundary, to be past it in spite of rounding."""
TIED = 4
"""Classes whose boundaries are tried for an item that stands at one, by attacks that do not look at any otherwise."""


def boundary(
    quick: Field,
    field: Field,
    task: Task,
    clean: Tensor,
    easily: Tensor,
    beyond: Tensor,
    within: Tensor,
    classes: tuple[int, int],
    batch: int,
) -> Found:
    """Where the linear model's nearest boundary is, `beyond` it in margin, and how many gradients it took ([N]).

    `within` [N]: how far what is held is, in L2; what lies farther is of no use.
    Gradients in reduced precision are good enough where they led to a success, `easily`: how far a boundary is, the
    clean logits say, which are in full.
    """
    nearest, count = torch.empty_like(task.origin), torch.empty_like(task.reference)
    fast = easily & (quick.reduced and not field.members and not task.targeted)
    for by, some in ((quick, fast), (field, ~fast)):
        rows = some.nonzero().squeeze(1)
        if len(rows):
            found = linear.candidates(
                by.part(rows), task.take(rows), clean[rows], classes, batch, beyond[rows], within[rows]
            )
            nearest[rows], count[rows] = found
    return nearest, count


def reached(field: Field, task: Task, nearest: Tensor, held: Found, size: int, norm: float) -> Found:
    """Towards the linear model's nearest boundary, not as far as what is held; and where that is a success. Also where
    that boundary is farther: the network may curve towards the input.

    Right beyond that boundary first: stretched and clipped, a point has another direction, in which pixels that are
    free to move would have gone less far than the nearest point has them.
    """
    best, success = held
    away = nearest - task.origin
    limit = torch.where(success, NEARER * norms(best - task.origin, norm), torch.inf)
    reach = limit / norms(away, norm).clamp_min(torch.finfo(away.dtype).tiny)

    def at(reach: Tensor, rows: Tensor) -> Found:
        some, way, seen = task.take(rows), away[rows], field.part(rows)
        share = torch.where(success[rows], reach[rows], 1.0)
        point = some.bounds.clip(some.origin + spread(share, way) * way)
        logits = torch.cat([seen.logits_of(part, size) for part in torch.split(point, size)])
        return point, some.succeeded(logits)

    # towards a target they are all passed there, and farther on one of them may be crossed again
    every = torch.arange(len(away), device=away.device)
    beyond = 1.0 if task.targeted else RIGHT_BEYOND
    point, there = at(reach.clamp_max(beyond), every)
    farther = (success & ~there & (reach > beyond)).nonzero().squeeze(1)
    if len(farther):
        point[farther], there[farther] = at(reach, farther)
    return point, ~success | there


def nearer(task: Task, one: Found, other: Found, norm: float) -> Found:
    """Of two points for each item, the nearer success."""
    far, near = (torch.where(found, norms(at - task.origin, norm), torch.inf) for at, found in (one, other))
    return torch.where(spread(near < far, one[0]), other[0], one[0]), one[1] | other[1]
