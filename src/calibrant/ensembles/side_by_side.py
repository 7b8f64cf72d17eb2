"""Several members of MC dropout as one batch: every dropout draws each member's mask from that member's own stream.

The batch holds the items G times over, member after member. Where a dropout module is reached, each member's share
goes through it alone, under the state of the generators that this member's own pass would have here: the masks are
those of the naive loop bit for bit. The other layers see one large batch, whose kernels may sum in another order, so
the logits agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.ensembles.dropping import local
from calibrant.ensembles.replay import Diverged, Tape

SATURATED = 512 * 2**20
"""Bytes of the largest activation beyond which a larger batch gains nothing: the bound on memory."""

FEWEST = 8
"""Members below which one batch is not worth the member that is run twice to check it."""


RESERVED = 0.25
"""Share of the free memory that may be reserved for what a replay does not compute."""


def together(members: int, widest: int, idle: int, free: int | None) -> int:
    """How many members to run as one batch (1: one by one), for activations of `widest` bytes a member, and `idle`
    bytes a member reserved for what is not computed again, of `free` bytes on the GPU.

    On a CPU (`free` is None) a batch of one member is already long enough, and one by one the numbers are exact.
    """
    if free is None or members < FEWEST:
        return 1
    return max(1, min(members, SATURATED // max(widest, 1), int(RESERVED * free) // max(idle, 1)))


def agrees(a: Tensor, b: Tensor) -> bool:
    """The same logits up to the rounding of their precision: does the network treat items one by one?"""
    half = a.dtype in (torch.float16, torch.bfloat16)
    # convolutions on CUDA are in TF32 unless told otherwise
    tolerance = 5e-2 if half else 1e-2 if a.is_cuda else 1e-4
    return bool((a - b).abs().max() <= tolerance * (1 + a.abs().max()))


class Stream:
    """Where each member stands in one generator. A CUDA generator is (seed, offset): two cheap numbers."""

    def __init__(self, generator: torch.Generator, seeds: Sequence[int]) -> None:
        self.generator, self.seeds = generator, seeds
        self.counts = generator.device.type == "cuda"
        self.at: list[Any] = [None] * len(seeds)  # nothing was drawn yet

    def enter(self, member: int) -> None:
        at = self.at[member]
        if at is None or self.counts:
            self.generator.manual_seed(self.seeds[member])
        if at is not None:
            self.generator.set_offset(at) if self.counts else self.generator.set_state(at)

    def leave(self, member: int) -> None:
        self.at[member] = self.generator.get_offset() if self.counts else self.generator.get_state()


@contextmanager
def side_by_side(
    modules: Iterable[nn.Module], seeds: Sequence[int], devices: Sequence[Any], tape: Tape
) -> Iterator[None]:
    """Inside, a call of `modules` on a batch of len(seeds) members draws each member's mask from its own stream."""
    streams = [Stream(torch.default_generator, seeds)]
    streams += [Stream(torch.cuda.default_generators[d.index or 0], seeds) for d in devices]

    def split(m: nn.Module) -> Callable[..., Any]:
        one, plain = m.forward, local(m)

        def each(x: Tensor, args: Any, kwargs: Any) -> Tensor:
            moved = [s for s in streams if not plain or s.generator.device == x.device]
            out = []
            for member, part in enumerate(x.chunk(len(seeds))):
                for stream in moved:
                    stream.enter(member)
                out.append(one(part, *args, **kwargs))
                for stream in moved:
                    stream.leave(member)
            return torch.cat(out)

        def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if len(x) % len(seeds):
                raise Diverged(f"a dropout sees shape {tuple(x.shape)}, which is not one entry an item")
            if plain and not m.inplace and type(x) is Tensor:
                out: Tensor = tape.apart(x, lambda: each(x, args, kwargs))
                return out
            return each(x, args, kwargs)

        return forward

    own = [(m, m.__dict__.get("forward")) for m in modules]  # somebody may have put one there already
    try:
        for m, _ in own:
            m.forward = split(m)
        yield
    finally:
        for m, forward in own:
            m.__dict__.pop("forward", None)
            if forward is not None:
                m.forward = forward
