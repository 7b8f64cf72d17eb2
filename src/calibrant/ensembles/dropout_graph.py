"""Run the members of MC dropout by the network's graph (`torch.export`), so that their common part runs once per batch.

The member part is every operation that depends on an active random operation. The shared part is the rest. Members run
one by one, or in groups that are stacked along the batch. Each random operation draws a member's numbers from that
member's own generator, in the order of the network, so the masks are those of the plain loop. One by one, the logits
are those of the plain loop bit for bit. In groups they agree to rounding, because kernels sum a larger batch in another
order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg

from calibrant.ensembles.network_graph import (
    batch_sizes,
    descendants,
    draws,
    item_axes,
    number,
    sources,
    symbolic,
    tensors,
    written,
)

HALVES = (torch.float16, torch.bfloat16)

SATURATED = 512 * 2**20
"""The largest activation of a group, in bytes: a larger batch would not be faster."""

FREE = 1 / 8
"""The largest activation of a group, as a share of a GPU's free memory."""

FEWEST = 8
"""The fewest members for which groups are worth their check."""


class SplitNetwork:
    """The two parts of an exported network: `shared` runs the shared part, `members` the member part."""

    def __init__(self, program: torch.export.ExportedProgram, items: int) -> None:
        nodes = list(program.graph.nodes)
        self.items = items  # number of items in the first batch
        self.sources = sources(program)
        (self.x,) = (n for n, source in self.sources.items() if source is None)
        self.symbol, self.least, self.most = batch_sizes(program, self.x)
        self.output: Node = nodes[-1].args[0][0]
        self.random = {n for n in nodes if draws(n)}
        member = descendants(nodes, self.random)
        # A draw that no node reads still advances the generator, and a write is read through the tensor it changed.
        needed = {self.output, *self.random, *(n for n in nodes if written(n))}
        for n in reversed(nodes):
            if n in needed:
                needed.update(n.all_input_nodes)
        runs = [n for n in nodes if n in needed and n.op != "placeholder" and not symbolic(n)]
        self.member_part = [n for n in runs if n in member]
        self.shared_part = [n for n in runs if n not in member]
        self.frontier = {i for n in self.member_part for i in n.all_input_nodes} - member | {self.output} - member
        self.last_use = {i: n for part in (self.shared_part, self.member_part) for n in part for i in n.all_input_nodes}
        one = all(len(item_axes(t)) == 1 for n in self.member_part for t in tensors(n))
        self.stackable = one and self._axis(self.output) == 0  # each tensor has one axis of items, the logits' is first
        self.half = any(t.dtype in HALVES for n in self.member_part for t in tensors(n))
        self.verified: set[bool] = set()  # whether single members (False) and groups (True) were compared
        self._known: dict[tuple[Node, int], Any] = {}

    def takes(self, batch: int) -> bool:
        """Return whether the graph holds for a batch of that size.

        `export` assumes two items or more, so a batch of one needs a graph of its own, which is compared again."""
        return bool(self.least <= batch <= self.most) or (self.symbol is not None and batch == self.items)

    def group(self, x: Tensor, members: int, asked: int | None = None) -> int:
        """Return how many members run as one batch: `asked`, or as many as fill a GPU.

        On a CPU members run one by one: groups are no faster there, and single members have exact logits. A group has
        at least three members, because the check compares the middle one: a network that reads the first or the last
        item of its batch gives wrong logits there, but not at both ends.
        """
        if not self.stackable or (asked is None and not x.is_cuda):
            return 1
        size = min(members, asked) if asked else group_size(members, self._widest(x), free_memory(x.device))
        return size if size > 2 and size * len(x) <= self.most else 1

    def _widest(self, x: Tensor) -> int:
        """Return the size of the member part's largest tensor, in bytes."""
        kind = x.device.type
        most = torch.get_autocast_dtype(kind).itemsize if torch.is_autocast_enabled(kind) else 8
        every = (t for n in self.member_part for t in tensors(n))
        return max(
            min(t.element_size(), most) * int(math.prod(self._number(s, len(x)) for s in t.shape)) for t in every
        )

    def shared(self, model: nn.Module, x: Tensor) -> dict[Node, Any]:
        """Run the shared part on `x` with the current weights of `model`; return what the member part reads of it."""
        values = {n: x if source is None else source(model) for n, source in self.sources.items()}
        for n in self.shared_part:
            values[n] = self._run(n, lambda i: self._value(values, i, len(x)))
            for i in n.all_input_nodes:
                if self.last_use.get(i) is n:
                    values.pop(i, None)
        return {n: values[n] for n in self.frontier if n in values}

    def members(
        self, shared: dict[Node, Any], items: int, seeds: Sequence[int], generators: Sequence[torch.Generator]
    ) -> Tensor:
        """Return the logits of the members with these seeds, stacked along the batch of `items`: [G·N, …]."""
        count = len(seeds)
        values: dict[Node, Any] = {}  # for all members
        draws_of = {g.device: MemberDraws(g, seeds) for g in generators}

        def of_all(n: Node) -> Any:
            if n in shared and n not in values:
                axis = None if count == 1 else self._axis(n)
                values[n] = shared[n] if axis is None else torch.cat([shared[n]] * count, axis)
            return self._value(values, n, count * items)

        def of_one(n: Node, j: int) -> Any:
            if n in shared:
                return shared[n]
            value, axis = self._value(values, n, items), self._axis(n)
            if axis is None:
                return value
            size = value.shape[axis] // count
            return value.narrow(axis, j * size, size)

        def drawn(n: Node, j: int) -> Any:
            with draws_of[next(iter(tensors(n))).device].member(j):
                return self._run(n, lambda i: of_one(i, j))

        for n in self.member_part:
            if n in self.random:
                values[n] = joined(n, [drawn(n, j) for j in range(count)])
            else:
                values[n] = self._run(n, of_all)
            for i in n.all_input_nodes:
                if self.last_use[i] is n:
                    values.pop(i, None)
        logits: Tensor = of_all(self.output)
        return logits

    def _run(self, n: Node, value: Callable[[Node], Any]) -> Any:
        args: Any = map_arg(n.args, value)
        kwargs: Any = map_arg(n.kwargs, value)
        return n.target(*args, **kwargs)  # type: ignore[operator]

    def _value(self, values: dict[Node, Any], n: Node, batch: int) -> Any:
        """Return the value of a node, or the number that it stands for in a batch of this size."""
        if n in values:
            return values[n]
        if (n, batch) not in self._known:
            self._known[n, batch] = self._number(n.meta["val"], batch)
        return self._known[n, batch]

    def _number(self, value: Any, batch: int) -> Any:
        return number(value, self.symbol, batch)

    def _axis(self, n: Node) -> int | None:
        """Return the axis of items of a tensor, or None."""
        found = item_axes(n.meta["val"]) if isinstance(n.meta["val"], Tensor) else ()
        return found[0] if found else None


def joined(n: Node, parts: list[Any]) -> Any:
    """Join the members' results of one random operation along the batch."""
    if len(parts) == 1:
        return parts[0]
    whole = n.meta["val"]
    if isinstance(whole, Tensor):
        return torch.cat(parts, item_axes(whole)[0])
    columns = zip(whole, *parts, strict=True)
    return tuple(torch.cat(each, item_axes(t)[0]) if isinstance(t, Tensor) else each[0] for t, *each in columns)


def group_size(members: int, widest: int, free: int) -> int:
    """Return how many members fill a GPU with `free` bytes, if a member's largest activation has `widest` bytes."""
    return 1 if members < FEWEST else max(1, min(members, min(SATURATED, int(FREE * free)) // max(widest, 1)))


def free_memory(device: torch.device) -> int:
    """Return the device's free memory in bytes, including what PyTorch has reserved and does not use."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def agrees(a: Tensor, b: Tensor, *, half: bool = False) -> bool:
    """Return whether logits agree up to rounding. `half`: they were computed in half precision, whatever their type."""
    # convolutions on CUDA use TF32 by default
    tolerance = 5e-2 if half else 1e-2 if a.is_cuda else 1e-4
    largest = float(a.nan_to_num(0.0, 0.0, 0.0).abs().max())  # logits may be −inf
    return torch.allclose(a, b, rtol=0, atol=tolerance * (1 + largest), equal_nan=True)


class MemberDraws:
    """One generator, used by all members in turn: each continues where its own last draw ended."""

    def __init__(self, generator: torch.Generator, seeds: Sequence[int]) -> None:
        self.generator, self.seeds = generator, seeds
        self.states: list[Tensor | None] = [None] * len(seeds)  # None: the member has drawn nothing yet

    @contextmanager
    def member(self, j: int) -> Iterator[None]:
        """Inside, the generator draws for member j."""
        state = self.states[j]
        if state is None:
            self.generator.manual_seed(self.seeds[j])
        else:
            self.generator.set_state(state)
        yield
        self.states[j] = self.generator.get_state()
