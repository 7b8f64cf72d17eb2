"""How the maps of a network end: which operations turn a map into a vector of its channels for good (global pooling).

A map ends where no map of as many axes comes of it: then a squeeze, whose gate meets its map again, is no end. Each
tower of a network has an end, and one map may end in several poolings (its mean beside its maximum).
"""

from __future__ import annotations

from math import prod

from calibrant.nn.operations import CONVOLUTIONS, COPIES, POOLS, PRODUCTS, REDUCTIONS, VIEWS
from calibrant.nn.tracing import Operation, Trace

SUMS = frozenset({"add", "add_"})


def global_poolings(run: Trace) -> list[Operation]:
    """The operations that pool a map at its end, in their order; where views, copies or a pooling of one axis come
    before one (`z.mean(-1).mean(-1)`), the first of those."""
    last = max((n for n in run.writers if _counts(run, n)), key=lambda n: (run.writers[n].at, n), default=-1)
    found = [op for number in _ending(run) for op in _poolings(run, number, strict=number != last)]
    return sorted(found, key=lambda op: op.at)


def _ending(run: Trace) -> list[int]:
    """The maps of several points of which no other of the same rank comes."""
    ranks: dict[int, int] = {}  # of the maps that come of a tensor, a bit each
    for op in reversed(run.operations):
        later = 0
        for n in set(op.writes) - set(op.reads):
            later |= ranks.get(n, 0) | _counts(run, n) << len(run.shapes[n])
        for n in op.reads:
            ranks[n] = ranks.get(n, 0) | later
    return [n for n in run.maps if _counts(run, n) and not ranks.get(n, 0) >> len(run.shapes[n]) & 1]


def _counts(run: Trace, number: int) -> bool:
    """Whether this is a map of several points that a convolution made: no image, nor a resized embedding of places."""
    made = run.writers.get(number)
    return run.points(number) > 1 and made is not None and (made.convolutions > 0 or made.name in CONVOLUTIONS)


def _poolings(run: Trace, number: int, strict: bool) -> list[Operation]:
    """The poolings of one map; `strict`: nothing else may read it, as a norm of it does that divides it."""
    channels = prod(run.shapes[number][:2])
    first: dict[int, Operation | None] = {number: None}  # the map and what is it seen otherwise → how that began
    found: dict[int, Operation] = {}
    for op in run.operations:
        source = next((n for n in op.reads if n in first), None)
        if source is None:
            continue
        start = first[source] or op
        if op.name in VIEWS | COPIES or _pools_a_part(run, op, source, channels):
            first.update((n, start) for n in op.writes if n not in run.maps and n not in first)
        elif op.name in PRODUCTS | CONVOLUTIONS or prod(run.shapes[op.writes[0]]) != channels:
            if strict:
                return []
        elif found or not _convolves(run, number, op):
            found.setdefault(start.at, start)
        else:
            return []
    return list(found.values())


def _pools_a_part(run: Trace, op: Operation, source: int, channels: int) -> bool:
    """Whether an operation pools over some axes and leaves others, of which another pools the rest."""
    return op.name in REDUCTIONS and channels < prod(run.shapes[op.writes[0]]) < prod(run.shapes[source])


def _convolves(run: Trace, number: int, pooling: Operation) -> bool:
    """Whether a convolution over neighbours follows, or the sum that ends a residual block, whose shortcut was pooled:
    then a map of one point was only a small image."""
    rank, reached, convolved = len(run.shapes[number]), {number}, False
    for o in run.operations:
        if not reached & set(o.reads):
            continue
        reached |= set(o.writes)
        if o.at <= pooling.at:
            continue
        if o.name in CONVOLUTIONS and o.axes + 2 == rank:
            if max(run.shapes[o.reads[1]][2:]) > 1:
                return True
            convolved = True
        elif convolved and o.name in SUMS and [len(run.shapes[n]) for n in o.reads] == [rank] * 2:
            return True
    return False


def starved(run: Trace) -> bool:
    """Whether a convolution over neighbours saw one point: the image was too small for a part of the network."""
    return any(
        o.name in CONVOLUTIONS and max(run.shapes[o.reads[1]][2:]) > 1 and max(run.shapes[o.reads[0]][2:]) == 1
        for o in run.operations
    )


def later_maps(run: Trace, op: Operation) -> bool:
    """Whether maps of several points come of what an operation wrote, but for one point spread over many (torchvision's
    VGG on small images)."""
    spread: set[int] = set()
    for o in run.behind(op):
        maps = {n for n in o.reads if run.points(n) > 1}
        if maps <= spread and (maps or (o.name in POOLS and o.reads)):
            spread |= set(o.writes)
        elif any(run.points(n) > 1 for n in o.writes):
            return True
    return False
