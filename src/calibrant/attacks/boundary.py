"""The end of every attack, in full precision: does the label flip, and how near to the origin on the way there.

Steps may have run in reduced precision, and a success is what a fresh forward pass calls one; so the last word is said
here. A minimum-norm attack then looks for the root of the margin between the origin (no success) and its best point
(success), by Anderson and Björck's form of regula falsi (1973): forward passes only. A point counts when its margin
exceeds the noise between one forward pass and the next (`noise`), so that the label flips in whatever batch the point
is looked at.

Some items come here apart from the others, and a few rows may have a kernel of their own that shows less noise than
those of a large batch. So all are looked at once more together (`firm`), as a caller would, and what does not clear
the noise there is moved outward in short strides.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.attacks import noise
from calibrant.attacks.field import Field
from calibrant.attacks.task import Task, spread

EVALUATIONS = 7
NEAR = 5e-6
"""Share of the way by which an item would gain at most, as the chord has it, when its search ends. Rounding decides now
and then whether it ends a pass sooner, and the distance is not to tell."""
COARSER = 1 / 8
"""Of the slack: the clearance with which a search ends in TF32 or half precision. Less says nothing there, and every
item would be searched for to its last pass."""
CLOSE = 16.0
"""Times the slack: inputs nearer than this to a boundary, in margin, are searched for as a caller would look at them.
In the fastest layout other kernels round otherwise, and may see such an input beyond the boundary where it stands;
from there no way leads outward (`firm`)."""
CLEAR = 1e-4
"""Share of the margin at the origin by which a success clears the boundary: a hundredth of a per cent of the distance,
and beyond the noise even where a few classes, all equal at the boundary, show none of it."""
OVERSHOOT = (1.002, 1.05, 1.2, 2.0, 8.0, 64.0)
"""How far beyond a point the success is looked for that exceeds the noise: first as far as the chord says, or the first
of these if that is more, then the others, each time twice as far beyond as before at least. What reduced precision
found is a little farther, the success of an input that stands almost at the boundary itself many times its distance;
beyond the last of these a direction is no longer the attack's."""

FIRM = 2 / 3
"""Share of the slack that a settled point needs among all: measured anew, the noise is now larger, now smaller."""
AHEAD, SHORT = (0.5, 2.0, 8.0), 3.0
"""Who needs more goes outward first to where the chord from the origin has what is needed, and these shares of it more,
one after the other, if that is not beyond `SHORT`."""
OUTWARD = (1.001, 1.002, 1.005, 1.01, 1.03, 1.1, 1.3, 2.0, 4.0, 16.0, 64.0, 512.0)
"""As far as it takes, in shares of the distance; the last are for inputs that stand at the boundary themselves."""


def settle(
    field: Field,
    task: Task,
    best: Tensor,
    last: Tensor,
    margin: Tensor,
    least: Tensor,
    *,
    batch: int,
    search: bool,
) -> tuple[Tensor, Tensor]:
    """Points and whether they succeed: with `search` the nearest on the way to `best`, else `last`, else `best`.

    `margin` [N] is that of the origins, `least` [N] the slack among all items: apart from them there may be less to see
    of the noise.
    """
    if search:
        return _nearest(field, task, best, margin, least, batch)
    points, successes = [], []
    for part in _parts(best, batch):
        rows = field.filled(part, batch)
        point, success = _checked(field, task.take(rows), best[rows], last[rows], least[rows])
        points.append(point[: len(part)])
        successes.append(success[: len(part)])
    return torch.cat(points), torch.cat(successes)


def _parts(items: Tensor, batch: int) -> tuple[Tensor, ...]:
    """Numbers of rows, not more than a batch each."""
    return torch.split(torch.arange(len(items), device=items.device), batch)


def firm(field: Field, task: Task, point: Tensor, claimed: Tensor, margin: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """All points, and which of the claimed are successes among all; some of these a little farther out than before.

    `margin` [N] is that of the origins.
    """
    parts = [slice(start, start + batch) for start in range(0, len(point), batch)]
    firmed = [_firm(field, task.take(part), point[part], claimed[part], margin[part]) for part in parts]
    points, kept = zip(*firmed, strict=True)
    return torch.cat(points), torch.cat(kept)


def _measured(field: Field, task: Task, point: Tensor) -> tuple[Tensor, Tensor]:
    """[N], [N]: the margin, and what it must exceed: a share of the noise, measured here and now."""
    logits = field.logits(point)
    return task.margin(logits), FIRM * noise.slack(field, [point], logits)


def _clear(field: Field, task: Task, point: Tensor) -> Tensor:
    margin, needed = _measured(field, task, point)
    return margin > needed


def _firm(field: Field, task: Task, point: Tensor, claimed: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    delta = point - task.origin
    margin, needed = _measured(field, task, point)
    holds = ~claimed | (margin > needed)
    if bool(holds.all()):
        return point, claimed
    for ahead in AHEAD:
        point, holds = _by_chord(field, task, point, holds, _share(start, margin, needed, ahead), needed)
    tried = torch.zeros(len(point), dtype=torch.long, device=point.device)  # reaches, of each row
    while len(lost := (~holds & (tried < len(OUTWARD))).nonzero().squeeze(1)):
        count = max(1, min(len(point) // len(lost), len(OUTWARD)))  # so many reaches of all that are lost are one batch
        moved, cleared, used = _outward(field, task, point, delta, lost, tried[lost], count)
        point, tried = point.index_copy(0, lost, moved), tried.index_copy(0, lost, used)
        if bool(cleared.any()):  # beside others they cleared the noise, and now where they stand
            holds = holds | (torch.zeros_like(holds).index_copy(0, lost, cleared) & _clear(field, task, point))
    return point, claimed & holds


def _share(start: Tensor, margin: Tensor, needed: Tensor, ahead: float) -> Tensor:
    """Of the way: how much farther the chord from the origin has what is needed, and a share of that more."""
    return ((1 + ahead) * needed - margin) / (margin - start)


def _by_chord(
    field: Field, task: Task, point: Tensor, holds: Tensor, share: Tensor, needed: Tensor
) -> tuple[Tensor, Tensor]:
    """Who does not hold, a share of the way farther out, where the margin exceeds there what is needed; who holds then.

    One pass serves all, for they are looked at where they stand. What is needed there was measured next to it: for
    those whose noise was large now, more than it would be on average.
    """
    reach = 1 + share.clamp_min(OUTWARD[0] - 1)
    near = ~holds & (share > 0) & (reach < SHORT)
    if not bool(near.any()):
        return point, holds
    farther = task.bounds.clip(task.origin + spread(reach.to(point.dtype), point) * (point - task.origin))
    moved = torch.where(spread(near, point), farther, point)
    clear = near & (task.margin(field.logits(moved)) > needed)
    return torch.where(spread(clear, point), farther, point), holds | clear


def _outward(
    field: Field, task: Task, point: Tensor, delta: Tensor, lost: Tensor, tried: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the rows that are lost: where the shortest of their next `count` reaches that clears the noise is, whether
    there is one, and how many they have tried then. Others stand beside, so that the batch is as large as it was."""
    reaches = torch.tensor(OUTWARD, dtype=point.dtype, device=point.device)
    steps = torch.arange(count, device=point.device)[:, None]
    numbers = (tried + steps).clamp_max(len(OUTWARD) - 1)  # [count, lost]
    rows = lost.repeat(count)
    farther = task.bounds.clip(task.origin[rows] + spread(reaches[numbers].flatten(), point) * delta[rows])
    beside = torch.arange(len(rows), len(point), device=point.device)
    every = _clear(field, task.take(torch.cat([rows, beside])), torch.cat([farther, point[beside]]))
    clear = every[: len(rows)].view(count, len(lost))
    first, found = clear.int().argmax(0), clear.any(0)
    chosen = farther[first * len(lost) + torch.arange(len(lost), device=point.device)]
    return torch.where(spread(found, point), chosen, point[lost]), found, tried + torch.where(found, first + 1, count)


def _checked(field: Field, task: Task, best: Tensor, last: Tensor, least: Tensor) -> tuple[Tensor, Tensor]:
    """The last point; where it is no success but an earlier one was, that one."""
    at_last, at_best = (clears(field, task, point, least) for point in (last, best))
    return torch.where(spread(~at_last & at_best, best), best, last), at_last | at_best


def clears(field: Field, task: Task, point: Tensor, least: Tensor) -> Tensor:
    """[N]: does the margin exceed the noise? It is measured where the margin exceeds the `least` there is."""
    logits = field.logits(point)
    margin = task.margin(logits)
    clear = margin > least
    rows = clear.nonzero().squeeze(1)
    if len(rows):
        clear[rows] = margin[rows] > noise.slack(field.part(rows), [point[rows]], logits[rows])
    return clear


def _nearest(field: Field, task: Task, best: Tensor, start: Tensor, least: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """All items are searched for together: most are near after a look or two, and few are left of every batch."""

    def at(t: Tensor | float, rows: Tensor) -> Tensor:
        origin = task.origin[rows]
        share = t if isinstance(t, float) else spread(t, origin)
        return task.bounds.clip(origin + share * (best[rows] - origin))

    low = torch.zeros(len(best), dtype=best.dtype, device=best.device)
    high = torch.ones_like(low)
    close = (start.abs() < CLOSE * least) & field.lays_out_anew(best)

    def margins(t: Tensor, rows: Tensor) -> Tensor:
        seen = torch.empty_like(start[rows])
        for which, search in ((~close[rows], True), (close[rows], False)):
            for part in filter(len, torch.split(which.nonzero().squeeze(1), batch)):
                some = rows[part]
                logits = field.part(some).logits_of(at(t[part], some), batch, search=search)
                seen[part] = task.take(some).margin(logits)
        return seen

    margin, slack = _first(field, task, at, batch)
    if len(rows := close.nonzero().squeeze(1)):
        margin[rows] = margins(high[rows], rows)
    slack = torch.maximum(slack, least)
    enough = (COARSER if noise.coarse(field, slack.device) else 0.0) * slack
    loud = slack
    slack = torch.maximum(slack, CLEAR * start.abs())

    def clearance(t: Tensor, rows: Tensor) -> Tensor:
        return (margins(t, rows) - slack[rows]).to(best.dtype)

    below, above = (start - slack).to(best.dtype), (margin - slack).to(best.dtype)
    share = _share(start, margin, slack, AHEAD[0]).to(best.dtype)
    chord = 1 + torch.where(1 + share < SHORT, share, 0.0).clamp_min(OVERSHOOT[0] - 1)  # no rise, no chord
    success = above > 0
    for reach in (chord, *(torch.full_like(chord, reach) for reach in OVERSHOOT[1:])):
        if bool(success.all()):
            break
        rows = (~success).nonzero().squeeze(1)
        farther = torch.maximum(reach[rows], 2 * high[rows] - 1).clamp_max(OVERSHOOT[-1])
        low[rows], below[rows], high[rows] = high[rows], above[rows], farther
        above[rows] = clearance(farther, rows)
        success = above > 0
    # where the region beyond the boundary is so narrow that no reach is CLEAR of it, clear of the noise will do
    if len(rows := (~success & (margin > loud)).nonzero().squeeze(1)):
        slack[rows], low[rows], high[rows], success[rows] = loud[rows], 0.0, 1.0, True
        below[rows], above[rows] = ((end[rows] - loud[rows]).to(best.dtype) for end in (start, margin))
    high = _root(clearance, low, high, below, above, success, enough.to(best.dtype))
    parts = [torch.where(spread(success[rows], best), at(high[rows], rows), best[rows]) for rows in _parts(best, batch)]
    return torch.cat(parts), success


def _first(field: Field, task: Task, at: Callable[[float, Tensor], Tensor], batch: int) -> tuple[Tensor, Tensor]:
    """[N], [N]: the margin at the best points, and the slack on the way there."""
    margins, slacks = [], []
    for part in _parts(task.origin, batch):
        rows = field.filled(part, batch)
        seen = field.part(rows)
        logits = seen.logits_of(at(1.0, rows), batch)
        margins.append(task.take(rows).margin(logits)[: len(part)])
        places = [at(share, rows) for share in noise.places(logits.shape[1])]
        slacks.append(noise.slack(seen, places, logits)[: len(part)])
    return torch.cat(margins), torch.cat(slacks)


def _root(
    clearance: Callable[[Tensor, Tensor], Tensor],
    low: Tensor,
    high: Tensor,
    below: Tensor,
    above: Tensor,
    success: Tensor,
    enough: Tensor,
) -> Tensor:
    """The shortest way with a clearance above zero, between one without and one with; who is near it leaves, or has no
    more clearance than is `enough`."""
    side, clear = torch.zeros_like(low), above.clone()  # `above` counts for less on the way
    for _ in range(EVALUATIONS):
        # in shares of the way and not of the margin, which may be flat at the boundary
        gain = clear * (high - low) / (clear - below)
        rows = (success & (gain > NEAR * high) & (clear > enough)).nonzero().squeeze(1)
        if not len(rows):
            break
        left, right, under, over, last = low[rows], high[rows], below[rows], above[rows], side[rows]
        # the root of the chord, but never at an end of the interval, where it would stand still
        chord = right - over * (right - left) / (over - under)
        t = torch.minimum(torch.maximum(chord, left + 0.01 * (right - left)), right - 0.002 * (right - left))
        there = clearance(t, rows)
        hit = there > 0
        # an end that stays a second time counts for less, and the less the flatter the curve is at the other one
        share = 1 - there / torch.where(hit, over, under)
        share = torch.where(share > 0, share, 0.5)
        below[rows] = torch.where(hit, torch.where(last > 0, share * under, under), there)
        above[rows] = torch.where(hit, there, torch.where(last < 0, share * over, over))
        clear[rows] = torch.where(hit, there, clear[rows])
        low[rows], high[rows] = torch.where(hit, left, t), torch.where(hit, t, right)
        side[rows] = 2.0 * hit.to(side.dtype) - 1.0
    return high
