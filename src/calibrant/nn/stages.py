"""Find the places for smoothing layers in any network (SS Fig. 4): before each subsampling and before global pooling.

A place is *before* a module. If a function subsamples, the place is *after* the module that returned its input. The
rules, applied to a `Trace`:

- A module that takes a map, passes it to several layers and returns a smaller map is smoothed as a whole: the place is
  before the module. A residual block is the usual example; its layers may read the input itself, or the norm and
  activation of it.
- Otherwise the place is right before the strided layer, the pool, or the slice that takes every second point.
- The stem is skipped: layers with no or one convolution before them (unless nothing else subsamples), and the pool
  after a strided first layer. So a ResNet has the paper's four places, three before subsampling and one before global
  pooling.
- Subsamplings without a convolution between them count as one: two pools, a pool and a strided layer, or a power, a
  mean and a root (LPPool, GeM).
- A squeeze (the average of a map that becomes a gate, while larger maps follow) is not subsampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from calibrant.nn.global_pooling import global_poolings, later_maps
from calibrant.nn.operations import CONVOLUTIONS, COPIES, NORMS, POOLS, RESIZES, SPATIAL, VIEWS
from calibrant.nn.tracing import Call, Operation, Trace

STEM = 2
"""Layers with fewer convolutions before them belong to the stem."""
PADS = frozenset({"constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d",
    "replication_pad2d", "replication_pad3d"})  # fmt: skip
ROOT = 8
"""The most operations between the mean and the root of a power mean: F.lp_pool2d has five, for the sign."""


@dataclass(frozen=True)
class Place:
    """A place before or after a module, with the size of its map and the number of spatial axes."""

    side: Literal["before", "after"]
    name: str
    size: tuple[int, ...] = ()
    axes: int = 2

    def __str__(self) -> str:
        return f"{self.side} {self.name}"


@dataclass(frozen=True)
class Unreachable:
    """A subsampling operation that no place reaches, the reason, and a nearby place for `where=` ("" if none)."""

    operation: str
    why: str
    nearby: str = ""


def places(run: Trace, *, prob: bool = True) -> tuple[list[Place], list[Unreachable]]:
    """Return all places in the order of execution, each once, and the subsampling operations that no place reaches.

    `prob`: the inserted layer begins with Prob, so that it may come before or after a ReLU."""
    found, missed = _places(run, STEM, prob)
    return (found, missed) if found or missed else _places(run, 1, prob)  # a network that is little more than a stem


def _places(run: Trace, stem: int, prob: bool) -> tuple[list[Place], list[Unreachable]]:
    whole: list[Call] = []  # modules that are smoothed as a whole; the operations inside need no place
    reached: list[tuple[Operation, Place | None, int]] = []  # no Place: a function, whose place is after a module
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
    missed: list[Unreachable] = []
    everywhere: set[int] = set()  # maps that are smoothed for all their readers
    for op, place, took in reached:
        if place is None:
            after = _after(run, op, chains, prob)
            if isinstance(after, Unreachable):
                missed.append(after)
                continue
            gave = {c.gave for c in run.calls if c.name == after.name}
            for chain in chains.values():
                ends = [i for i, n in enumerate(chain) if n in gave]
                everywhere |= set(chain[: ends[0] + 1] if ends else ())
            place = after
        known = found.setdefault(str(place), (place, took))[0]
        if known.axes != place.axes:
            why = f"a map of {place.axes} axes that {place.name!r} shares with others"
            missed.append(Unreachable(_described(run, op), why))
    return [place for place, took in found.values() if took not in everywhere], missed


def _subsampling(run: Trace, stem: int) -> Iterator[Operation]:
    """Yield the operations that subsample a map or pool it globally, except pools of a map that was pooled already."""
    poolings = {op.at for op in global_poolings(run)}
    pooled: set[int] = set()
    for op in run.operations:
        again = bool(op.reads) and op.reads[0] in pooled
        inputs = run.inputs(op)
        if op.name not in CONVOLUTIONS and inputs and pooled.issuperset(inputs):
            pooled |= set(op.writes)
        if not again and (op.at in poolings or _subsamples(run, op, stem)):
            pooled |= set(op.writes) if op.name in POOLS | RESIZES | {"slice"} else set()
            yield op


def _subsamples(run: Trace, op: Operation, least: int) -> bool:
    if not op.subsamples or op.convolutions < least or max(run.shapes[op.reads[0]][2:]) < 2:
        return False
    if op.name == "slice" and op.reads[0] not in run.maps:
        return False  # a slice of tokens, or the second slice of a pair
    if max(run.shapes[op.writes[0]][2:]) == 1 and later_maps(run, op):
        return False  # a squeeze
    past = run.upstream.get(op.reads[0], 0)
    before = [o for o in run.operations[: op.at] if o.subsamples and past >> o.at & 1]
    stem = [o for o in before if o.convolutions == 0]
    return not (stem and before == stem and op.name in POOLS) or _block(run, op) is not None


def _before(run: Trace, op: Operation, stem: int) -> tuple[Place | None, Call | None]:
    """Return the place before the module that a subsampling operation begins (None inside the stem), and its call."""
    block = _block(run, op)
    if block is not None:
        return _at(run, "before", block, block.took, op) if block.convolutions >= stem else None, block
    inside = [run.calls[i] for i in op.inside]
    origin = _origin(run, op)
    for source in (op.reads[0], origin, _unpadded(run, origin)):
        for call in reversed(inside):
            if call.took == source:
                return _at(run, "before", call, source, op), call
    return None, None


def _block(run: Trace, op: Operation) -> Call | None:
    """Return the outermost call around an operation that takes a map, passes it to several layers and returns a smaller
    map."""
    calls = (run.calls[i] for i in op.inside)
    return next((c for c in calls if c.convolutions >= 1 and _shrinks(run, c) and _branches(run, c) > 1), None)


def _at(run: Trace, side: Literal["before", "after"], call: Call, number: int, op: Operation) -> Place:
    size = run.size(number)
    return Place(side, call.name, size, len(size) or op.axes)


def _shrinks(run: Trace, call: Call) -> bool:
    large, small = run.size(call.took), run.size(call.gave)
    return len(large) == len(small) and any(a < b for a, b in zip(small, large, strict=True))


def _branches(run: Trace, call: Call) -> int:
    """Return how many of a module's children and own operations read its input.

    A norm and an activation of the input (He 2016b; scaled, in NFNets) count as the input."""
    at = next(i for i, c in enumerate(run.calls) if c is call)
    own, number = [op for op in run.operations if at in op.inside], call.took
    while True:
        readers = [op for op in own if number in op.reads]
        if len(readers) != 1 or not _point_by_point(run, readers[0], number):
            return len({_branch(op, at) for op in readers})
        number = readers[0].writes[0]


def _point_by_point(run: Trace, op: Operation, number: int) -> bool:
    """Return whether an operation computes one map of the same size from this map alone."""
    if op.name in SPATIAL | VIEWS or set(run.inputs(op)) != {number}:
        return False
    return op.name in NORMS or run.size(number) == run.size(op.writes[0]) != ()


def _branch(op: Operation, at: int) -> tuple[str, int]:
    """Return the child of call `at` that an operation is in, or the operation itself."""
    depth = op.inside.index(at) + 1
    return ("call", op.inside[depth]) if len(op.inside) > depth else ("operation", op.at)


def _origin(run: Trace, op: Operation) -> int:
    """Return the map that an operation subsamples.

    This undoes the axis that torch adds to a 1-d map for its pools. For the mean of a power mean, it is the map before
    the power."""
    number = op.reads[0]
    number = run.lifted.get(number, number) if op.name in POOLS else number
    power = run.writers.get(number)
    if power is None or power.name != "pow" or not any(o.name == "pow" for o in run.dependents(op)[:ROOT]):
        return number
    bound = run.writers.get(power.reads[0])
    return bound.reads[0] if bound is not None and bound.name in ("clamp", "clamp_min", "abs") else power.reads[0]


def _unpadded(run: Trace, number: int) -> int:
    """Return the map before the padding that a convolution does in its own forward (TensorFlow's "same")."""
    pad = run.writers.get(number)
    return pad.reads[0] if pad is not None and pad.name in PADS else number


def _chain(run: Trace, number: int, prob: bool) -> list[int]:
    """Return a map and the earlier maps of which it is a copy or the ReLU, which commutes with Prob (SS Eq. 41)."""
    chain = [number]
    while (op := run.writers.get(chain[-1])) and (op.name in COPIES or (op.rectifies and prob)):
        chain.append(op.reads[0])
    return chain


def _after(run: Trace, op: Operation, chains: dict[int, list[int]], prob: bool) -> Place | Unreachable:
    """Return the place after the outermost module that returned this map, if functions subsample all its outputs."""
    pooled = {n for chain in chains.values() for n in chain}
    shared = ""
    for number in chains[op.at]:
        for call in run.calls:
            if call.gave == number:
                if all(c.gave in pooled for c in run.calls if c.name == call.name):
                    return _at(run, "after", call, number, op)
                shared = shared or call.name
    named, maker = _described(run, op), run.writers.get(chains[op.at][-1])
    if shared:
        nearby = f"where='after {shared}' smooths it at every call"
        return Unreachable(named, f"the output of one of several calls of {shared!r}", nearby)
    inputs = run.inputs(maker) if maker is not None else []
    given = [c.name for n in inputs[:1] for c in run.calls if c.gave == n]
    if maker is not None and given and len(inputs) == 1 and maker.name not in SPATIAL | NORMS | VIEWS:
        name = maker.name.strip("_")
        why = "Prob commutes with ReLU alone (SS Eq. 41)" if prob else "a blur without Prob does not commute with it"
        nearby = f"where='after {given[0]}' smooths before {name}"
        return Unreachable(named, f"the {name} of the output of {given[0]!r}, and {why}", nearby)
    return Unreachable(named, "a map that no module returns")


def _described(run: Trace, op: Operation) -> str:
    return f"{op.name} in {run.calls[op.inside[-1]].name}" if op.inside else f"{op.name} in the network's own forward"
