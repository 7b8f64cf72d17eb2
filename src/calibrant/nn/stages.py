"""Where smoothing goes in anyone's network (SS Fig. 4): before each subsampling, and before global pooling.

A place is *before* a module, or *after* one where a function without a module of its own subsamples what that returned.
Read off a `Trace`:

- a residual block whose shortcut also takes its input, or the norm and activation of it, is smoothed as a whole, before
  the block; so is anything that takes a map (or several of one size, to put them together), hands it to several layers
  and returns a smaller one;
- else the place is right before the strided layer, the pool, or the slice that takes every second point;
- the stem is left alone: what sees the image or has one convolution before it (unless nothing else subsamples), and the
  pool that follows a strided first layer. That leaves a ResNet the paper's four layers, three before subsampling and
  one before global pooling;
- what is pooled (or resized, or skips points) and then, with no convolution between, subsampled again is so once: two
  pools are one, and so are a pool and a strided layer, and a power, a mean and a root (LPPool, GeM);
- a squeeze (a map averaged into a gate, while larger maps follow) is not subsampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from calibrant.nn.global_pooling import global_poolings, later_maps
from calibrant.nn.operations import CONVOLUTIONS, COPIES, NORMS, POOLS, RESIZES, SPATIAL, VIEWS
from calibrant.nn.tracing import Call, Operation, Trace

STEM = 2
"""Convolutions before which nothing is smoothed, unless nothing else is left."""
PADS = frozenset({"constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d"})  # fmt: skip
ROOT = 8
"""Operations between the mean and the root of a power mean, at the most: F.lp_pool2d has five, for the sign."""


@dataclass(frozen=True)
class Place:
    """Before what a module takes, or after what it gives; the size of the map there and its spatial axes."""

    side: Literal["before", "after"]
    name: str
    size: tuple[int, ...] = ()
    axes: int = 2

    def __str__(self) -> str:
        return f"{self.side} {self.name}"


@dataclass(frozen=True)
class Lost:
    """A subsampling operation without a place, why, and what `where=` would reach beside it ("": nothing)."""

    operation: str
    why: str
    beside: str = ""


def places(run: Trace, *, prob: bool = True) -> tuple[list[Place], list[Lost]]:
    """Every place, in the order of execution (a module that is used several times appears once), and the subsampling
    operations that have none. `prob`: what is inserted begins with Prob, so a ReLU may come before or after it."""
    found, lost = _places(run, STEM, prob)
    return (found, lost) if found or lost else _places(run, 1, prob)  # a network that is little more than a stem


def _places(run: Trace, stem: int, prob: bool) -> tuple[list[Place], list[Lost]]:
    whole: list[Call] = []  # modules that are smoothed before: what is inside them is done
    reached: list[tuple[Operation, Place | None, int]] = []  # without a place: a function, after what gave its map
    for op in _subsampling(run, stem):
        if any(call in whole for call in (run.calls[i] for i in op.inside)):
            continue
        place, call = _before(run, op, stem)
        if call is not None and place is None:
            continue  # a block that is part of the stem
        reached.append((op, place, -1 if call is None else call.took))
        whole += [] if call is None else [call]
    chains = {op.at: _chain(run, _origin(run, op), prob) for op, place, _ in reached if place is None}
    found: dict[str, tuple[Place, int]] = {}
    lost: list[Lost] = []
    everywhere: set[int] = set()  # maps that every reader sees smoothed
    for op, place, took in reached:
        if place is None:
            giver = _giver(run, op, chains, prob)
            if isinstance(giver, Lost):
                lost.append(giver)
                continue
            gave = {c.gave for c in run.calls if c.name == giver.name}
            for chain in chains.values():
                ends = [i for i, n in enumerate(chain) if n in gave]
                everywhere |= set(chain[: ends[0] + 1] if ends else ())
            place = giver
        known = found.setdefault(str(place), (place, took))[0]
        if known.axes != place.axes:
            lost.append(Lost(_said(run, op), f"a map of {place.axes} axes that {place.name!r} shares with others"))
    return [place for place, took in found.values() if took not in everywhere], lost


def _subsampling(run: Trace, stem: int) -> Iterator[Operation]:
    """What makes maps smaller or ends them, but for pools of what was pooled already."""
    poolings = {op.at for op in global_poolings(run)}
    pooled: set[int] = set()
    for op in run.operations:
        again = bool(op.reads) and op.reads[0] in pooled
        inputs = {n for n in op.reads if run.upstream.get(n)}
        if op.name not in CONVOLUTIONS and inputs and inputs <= pooled:
            pooled |= set(op.writes)
        if not again and (op.at in poolings or _subsamples(run, op, stem)):
            pooled |= set(op.writes) if op.name in POOLS | RESIZES | {"slice"} else set()
            yield op


def _subsamples(run: Trace, op: Operation, least: int) -> bool:
    if not op.subsamples or op.convolutions < least or max(run.shapes[op.reads[0]][2:]) < 2:
        return False
    if op.name == "slice" and op.reads[0] not in run.maps:
        return False  # tokens, or what a slice of the other axis left
    if max(run.shapes[op.writes[0]][2:]) == 1 and later_maps(run, op):
        return False  # a squeeze
    past = run.upstream.get(op.reads[0], 0)
    before = [o for o in run.operations[: op.at] if o.subsamples and past >> o.at & 1]
    stem = [o for o in before if o.convolutions == 0]
    return not (stem and before == stem and op.name in POOLS) or _block(run, op) is not None


def _before(run: Trace, op: Operation, stem: int) -> tuple[Place | None, Call | None]:
    """The module that a subsampling operation is the beginning of, and the place before it unless it is of the stem."""
    block = _block(run, op)
    if block is not None:
        return _at(run, "before", block, block.takes[0], op) if block.convolutions >= stem else None, block
    inside = [run.calls[i] for i in op.inside]
    origin = _origin(run, op)
    for source in (op.reads[0], origin, _unpadded(run, origin)):
        for call in reversed(inside):
            if call.took == source:
                return _at(run, "before", call, source, op), call
    return None, None


def _block(run: Trace, op: Operation) -> Call | None:
    """The outermost module around it that takes a map, hands it to several layers and returns a smaller one."""
    calls = (run.calls[i] for i in op.inside)
    return next((c for c in calls if c.convolutions >= 1 and _shrinks(run, c) and _heads(run, c) > 1), None)


def _at(run: Trace, side: Literal["before", "after"], call: Call, number: int, op: Operation) -> Place:
    size = run.size(number)
    return Place(side, call.name, size, len(size) or op.axes)


def _shrinks(run: Trace, call: Call) -> bool:
    before, after = ({run.size(n) for n in numbers} for numbers in (call.takes, call.gives))
    if len(before) != 1 or len(after) != 1:
        return False  # several sizes (HRNet's branches), or no map
    (large,), (small,) = before, after
    return len(large) == len(small) and any(a < b for a, b in zip(small, large, strict=True))


def _heads(run: Trace, call: Call) -> int:
    """How many of a module's children and of its own operations take the module's input or, where that only goes
    through a norm and an activation first (He 2016b; scaled, in NFNets) or is put together of its parts (dual paths),
    what they make of it. Parts that go their own ways (the views of a siamese network) have no common head."""
    at = next(i for i, c in enumerate(run.calls) if c is call)
    own, numbers = [op for op in run.operations if at in op.inside], set(call.takes)
    while True:
        readers = [op for op in own if numbers & set(op.reads)]
        heads = {_branch(op, at) for op in readers}
        if len(readers) != 1 or not _point_by_point(run, readers[0], numbers):
            return len(heads) if len(numbers) == 1 else 0
        numbers = {readers[0].writes[0]}


def _point_by_point(run: Trace, op: Operation, numbers: set[int]) -> bool:
    """Whether an operation makes, of these maps and no other, one map of their size."""
    if op.name in SPATIAL | VIEWS or {n for n in op.reads if run.upstream.get(n)} != numbers:
        return False
    return op.name in NORMS or all(run.size(n) == run.size(op.writes[0]) != () for n in numbers)


def _branch(op: Operation, at: int) -> tuple[str, int]:
    """The child of call `at` that an operation is in, or the operation itself."""
    depth = op.inside.index(at) + 1
    return ("call", op.inside[depth]) if len(op.inside) > depth else ("operation", op.at)


def _origin(run: Trace, op: Operation) -> int:
    """The map that an operation subsamples: without the axis that torch gives a 1-d map for its pools or an item alone
    for its batch, and where it is the mean of a power mean, what the power was taken of."""
    number = op.reads[0]
    number = run.lifted.get(number, number) if op.name in POOLS else number
    number = run.items.get(number, number)
    power = run.writers.get(number)
    if power is None or power.name != "pow" or not any(o.name == "pow" for o in run.behind(op)[:ROOT]):
        return number
    bound = run.writers.get(power.reads[0])
    return bound.reads[0] if bound is not None and bound.name in ("clamp", "clamp_min", "abs") else power.reads[0]


def _unpadded(run: Trace, number: int) -> int:
    """What a convolution that pads in its own forward (TensorFlow's "same") padded."""
    pad = run.writers.get(number)
    return pad.reads[0] if pad is not None and pad.name in PADS else number


def _chain(run: Trace, number: int, prob: bool) -> list[int]:
    """A map, and the maps before it that it copies or is the ReLU of: that commutes with Prob (SS Eq. 41)."""
    chain = [number]
    while (op := run.writers.get(chain[-1])) and (op.name in COPIES or (op.rectifies and prob)):
        chain.append(op.reads[0])
    return chain


def _giver(run: Trace, op: Operation, chains: dict[int, list[int]], prob: bool) -> Place | Lost:
    """After the outermost module that gave this map, if every map that the module gives is subsampled by a function."""
    pooled = {n for chain in chains.values() for n in chain}
    shared = ""
    for number in chains[op.at]:
        for call in run.calls:
            if call.gave == number:
                if all(c.gave in pooled for c in run.calls if c.name == call.name):
                    return _at(run, "after", call, number, op)
                shared = shared or call.name
    said, maker = _said(run, op), run.writers.get(chains[op.at][-1])
    if shared:
        beside = f"where='after {shared}' smooths it at every call"
        return Lost(said, f"what one of several calls of {shared!r} gives", beside)
    inputs = [n for n in maker.reads if run.upstream.get(n)] if maker is not None else []
    given = [c.name for n in inputs[:1] for c in run.calls if c.gave == n]
    if maker is not None and given and len(inputs) == 1 and maker.name not in SPATIAL | NORMS | VIEWS:
        name = maker.name.strip("_")
        why = "Prob commutes with ReLU alone (SS Eq. 41)" if prob else "a blur without Prob does not commute with it"
        beside = f"where='after {given[0]}' smooths in front of {name}"
        return Lost(said, f"the {name} of what {given[0]!r} gives, and {why}", beside)
    return Lost(said, "a map that no module hands to it")


def _said(run: Trace, op: Operation) -> str:
    return f"{op.name} in {run.calls[op.inside[-1]].name}" if op.inside else f"{op.name} in the network's own forward"
