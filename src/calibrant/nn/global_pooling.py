"""Find the global pooling of a network: the operations that turn a last map into a vector of its channels.

A map is a last map if no other map of as many axes depends on it. So a squeeze is no global pooling, because its gate
multiplies a map. Each tower of a network has a last map, and a last map may have several poolings (a mean and a
maximum).
"""

from __future__ import annotations

from math import prod

from calibrant.nn.operations import CONVOLUTIONS, COPIES, POOLS, PRODUCTS, REDUCTIONS, VIEWS
from calibrant.nn.tracing import Operation, Trace

SUMS = frozenset({"add", "add_"})


def global_poolings(run: Trace) -> list[Operation]:
    """Return the global poolings, in their order. A pooling may begin with views, copies or a pooling over one axis
    (`z.mean(-1).mean(-1)`); then this is the first of these operations."""
    last = max((n for n in run.writers if _is_candidate(run, n)), key=lambda n: (run.writers[n].at, n), default=-1)
    found = [op for number in _last_maps(run) for op in _poolings(run, number, strict=number != last)]
    return sorted(found, key=lambda op: op.at)


def _last_maps(run: Trace) -> list[int]:
    """Return the maps of several points on which no other map of the same rank depends."""
    ranks: dict[int, int] = {}  # tensor → the ranks of the maps that depend on it, one bit each
    for op in reversed(run.operations):
        later = 0
        for n in set(op.writes) - set(op.reads):
            later |= ranks.get(n, 0) | _is_candidate(run, n) << len(run.shapes[n])
        for n in op.reads:
            ranks[n] = ranks.get(n, 0) | later
    return [n for n in run.maps if _is_candidate(run, n) and not ranks.get(n, 0) >> len(run.shapes[n]) & 1]


def _is_candidate(run: Trace, number: int) -> bool:
    """Return whether this is a map of several points after a convolution, unlike images and resized embeddings."""
    made = run.writers.get(number)
    return run.points(number) > 1 and made is not None and (made.convolutions > 0 or made.name in CONVOLUTIONS)


def _poolings(run: Trace, number: int, strict: bool) -> list[Operation]:
    """Return the poolings of one map. `strict`: if any other operation reads the map, it has none."""
    channels = prod(run.shapes[number][:2])
    first: dict[int, Operation | None] = {number: None}  # the map and its views → the first operation of each view
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
    """Return whether an operation pools over some axes only, so that another must pool the rest."""
    return op.name in REDUCTIONS and channels < prod(run.shapes[op.writes[0]]) < prod(run.shapes[source])


def _convolves(run: Trace, number: int, pooling: Operation) -> bool:
    """Return whether a pooled map is convolved further: by a kernel of several points, or inside a residual block whose
    shortcut was pooled. Then the map has one point only because the image is small."""
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


def image_too_small(run: Trace) -> bool:
    """Return whether a kernel of several points was applied to a map of one point."""
    return any(
        o.name in CONVOLUTIONS and max(run.shapes[o.reads[1]][2:]) > 1 and max(run.shapes[o.reads[0]][2:]) == 1
        for o in run.operations
    )


def later_maps(run: Trace, op: Operation) -> bool:
    """Return whether maps of several points depend on the output of an operation. One point that is repeated does not
    count (torchvision's VGG does so with small images)."""
    spread: set[int] = set()
    for o in run.dependents(op):
        maps = {n for n in o.reads if run.points(n) > 1}
        if maps <= spread and (maps or (o.name in POOLS and o.reads)):
            spread |= set(o.writes)
        elif any(run.points(n) > 1 for n in o.writes):
            return True
    return False
