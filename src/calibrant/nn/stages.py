"""Where smoothing goes in anyone's network (SS Fig. 4): before each subsampling, and before global pooling.

A place is *before* a module, or *after* one where a function without a module of its own subsamples what that returned.
Read off a `Trace`:

- a residual block whose shortcut also takes its input, or the norm and activation of it, is smoothed as a whole, before
  the block; so is anything that takes a map, hands it to several layers and returns a smaller one;
- else the place is right before the strided layer, the pool, or the slice that takes every second point;
- the stem is left alone: what sees the image or has one convolution before it (unless nothing else subsamples), and the
  pool that follows a strided first layer. That leaves a ResNet the paper's four layers, three before subsampling and
  one before global pooling;
- two pools with no convolution between them are one;
- a squeeze (a map averaged into a gate, while larger maps follow) is no subsampling.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from calibrant.nn.tracing import CONVOLUTIONS, COPIES, NORMS, POOLS, PRODUCTS, RELUS, VIEWS, Call, Operation, Trace

STEM = 2
"""Convolutions before which nothing is smoothed, unless nothing else is left."""
PADS = frozenset({"constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d"})  # fmt: skip

SUMS = frozenset({"add", "add_"})


@dataclass(frozen=True)
class Place:
    """Before what a module takes, or after what it gives; the size of the map there."""

    side: Literal["before", "after"]
    name: str
    size: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.side} {self.name}"


def places(run: Trace) -> tuple[list[Place], list[str]]:
    """Every place, in the order of execution (a module that is used several times appears once), and the subsampling
    operations that have none: their input is no module's."""
    found, lost = _places(run, STEM)
    return (found, lost) if found or lost else _places(run, 1)  # a network that is little more than a stem


def _places(run: Trace, stem: int) -> tuple[list[Place], list[str]]:
    found: dict[str, Place] = {}
    whole: list[Call] = []  # modules that are smoothed before: what is inside them is done
    lost: list[str] = []
    takes: dict[str, int] = {}
    everywhere: set[int] = set()
    pooling, pooled = global_pooling(run), -1
    for op in run.operations:
        if op is not pooling and not _subsamples(run, op, stem):
            continue
        if op.convolutions == pooled:
            continue
        pooled = op.convolutions if op.name in POOLS else -1
        if any(call in whole for call in (run.calls[i] for i in op.inside)):
            continue
        place, call = _place(run, op, stem)
        if call is not None and call.convolutions < stem and place is None:
            continue  # a block that is part of the stem
        if place is None:
            inner = run.calls[op.inside[-1]].name if op.inside else "the network's own forward"
            lost.append(f"{op.name} in {inner}")
            continue
        found.setdefault(str(place), place)
        if call is None:
            everywhere.add(_origin(run, op.reads[0]))  # whoever reads this map sees it smoothed
        else:
            whole.append(call)
            takes[str(place)] = call.took
    return [place for key, place in found.items() if takes.get(key) not in everywhere], lost


def _subsamples(run: Trace, op: Operation, least: int) -> bool:
    if not op.subsamples or op.convolutions < least or max(run.shapes[op.reads[0]][2:]) < 2:
        return False
    if op.name == "slice" and op.reads[0] not in run.maps:
        return False  # tokens, or what a slice of the other axis left
    at = run.operations.index(op)
    if max(run.shapes[op.writes[0]][2:]) == 1 and _later_maps(run, at):
        return False  # a squeeze
    before = [o for o in run.operations[:at] if o.subsamples]
    stem = [o for o in before if o.convolutions == 0]
    return not (stem and before == stem and op.name in POOLS)


def _later_maps(run: Trace, at: int) -> bool:
    """Whether maps of several points follow, but for one point spread over many (torchvision's VGG on small images)."""
    spread: set[int] = set()
    for o in run.operations[at + 1 :]:
        maps = {n for n in o.reads if max(run.size(n), default=0) > 1}
        if maps <= spread and (maps or (o.name in POOLS and o.reads)):
            spread |= set(o.writes)
        elif any(max(run.size(n), default=0) > 1 for n in o.writes):
            return True
    return False


def global_pooling(run: Trace) -> Operation | None:
    """The operation that turns the last map into a vector of its channels, if that is how the map ends."""
    last = -1
    for op in run.operations:
        for n in op.writes:
            last = n if max(run.size(n), default=0) > 1 else last
    if last < 0:
        return None
    channels = prod(run.shapes[last][:2])
    views, first = {last}, None
    for op in run.operations:
        if not views & set(op.reads) or op.name in PRODUCTS | CONVOLUTIONS:
            continue
        first = first or op
        if op.name in VIEWS:
            views |= set(op.writes)
        elif any(prod(run.shapes[n]) == channels for n in op.writes):
            end = op if last in op.reads else first
            return None if _convolves(run, run.operations.index(op)) else end
    return None


def _convolves(run: Trace, at: int) -> bool:
    """Whether a convolution over neighbours follows, or the sum that ends a residual block, whose shortcut was pooled:
    then a map of one point was only a small image."""
    convolved = False
    for o in run.operations[at + 1 :]:
        if o.name in CONVOLUTIONS:
            if max(run.shapes[o.reads[1]][2:]) > 1:
                return True
            convolved = True
        elif convolved and o.name in SUMS and [len(run.shapes[n]) for n in o.reads] == [run.axes + 2] * 2:
            return True
    return False


def _place(run: Trace, op: Operation, stem: int) -> tuple[Place | None, Call | None]:
    """The place of a subsampling operation, and the module it is in front of."""
    t = _origin(run, op.reads[0])
    size = run.size(t)
    inside = [run.calls[i] for i in op.inside]
    for call in inside:
        if call.convolutions >= 1 and _shrinks(run, call) and _heads(run, call) > 1:
            return Place("before", call.name, run.size(call.took)) if call.convolutions >= stem else None, call
    for source in (t, _unpadded(run, t)):
        for call in reversed(inside):
            if call.took == source:
                return Place("before", call.name, run.size(source)), call
    gave = _giver(run, t)
    return (Place("after", gave.name, size), None) if gave is not None else (None, None)


def _shrinks(run: Trace, call: Call) -> bool:
    before, after = run.size(call.took), run.size(call.gave)
    return bool(before and after) and any(a < b for a, b in zip(after, before, strict=True))


def _heads(run: Trace, call: Call) -> int:
    """How many of a module's children and of its own operations take the module's input or, where that only goes
    through a norm and an activation first (He 2016b), what they make of it."""
    at = next(i for i, c in enumerate(run.calls) if c is call)
    own, number = run.operations[call.first : call.last], call.took
    while True:
        readers = [op for op in own if number in op.reads]
        heads = {_branch(op, at, own) for op in readers}
        if len(readers) != 1 or readers[0].name not in NORMS | RELUS:
            return len(heads)
        number = readers[0].writes[0]


def _branch(op: Operation, at: int, own: list[Operation]) -> tuple[str, int]:
    """The child of call `at` that an operation is in, or the operation itself."""
    depth = op.inside.index(at) + 1
    return ("call", op.inside[depth]) if len(op.inside) > depth else ("operation", own.index(op))


def _origin(run: Trace, number: int) -> int:
    """Back through the views by which torch gives a 1-d pool a fourth axis."""
    for op in reversed(run.operations):
        if number in op.writes and op.name in ("unsqueeze", "squeeze"):
            return _origin(run, op.reads[0])
    return number


def _unpadded(run: Trace, number: int) -> int:
    """What a convolution that pads in its own forward (TensorFlow's "same") padded."""
    for op in run.operations:
        if number in op.writes and op.name in PADS:
            return op.reads[0]
    return number


def _giver(run: Trace, number: int) -> Call | None:
    """The outermost module, used once, that gave this map; a ReLU in between commutes with Prob (SS Eq. 41)."""
    names = [c.name for c in run.calls]
    for call in run.calls:
        if call.gave == number and names.count(call.name) == 1:
            return call
    for op in reversed(run.operations):
        if number in op.writes and op.name in RELUS | COPIES:
            return _giver(run, op.reads[0])
    return None
