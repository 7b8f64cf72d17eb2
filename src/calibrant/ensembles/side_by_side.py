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

from calibrant.ensembles.replay import Diverged

SATURATED = 512 * 2**20
"""Bytes of the largest activation beyond which a larger batch gains nothing: the bound on memory."""

FEWEST = 8
"""Members below which one batch is not worth the member that is run twice to check it."""


def together(members: int, widest: int, device: torch.device) -> int:
    """How many members to run as one batch, for activations of `widest` bytes a member (1: one by one).

    On a CPU a batch of one member is already long enough, and one by one the numbers are exact.
    """
    if device.type == "cpu" or members < FEWEST:
        return 1
    return max(1, min(members, SATURATED // max(widest, 1)))


def agrees(a: Tensor, b: Tensor) -> bool:
    """The same logits up to the rounding of their precision: does the network treat items one by one?"""
    half = a.dtype in (torch.float16, torch.bfloat16)
    # convolutions on CUDA are in TF32 unless told otherwise
    tolerance = 5e-2 if half else 1e-2 if a.is_cuda else 1e-4
    return bool((a - b).abs().max() <= tolerance * (1 + a.abs().max()))


@contextmanager
def side_by_side(modules: Iterable[nn.Module], seeds: Sequence[int], devices: Sequence[Any]) -> Iterator[None]:
    """Inside, a call of `modules` on a batch of len(seeds) members draws each member's mask from its own stream."""
    generators = [torch.default_generator, *(torch.cuda.default_generators[d.index or 0] for d in devices)]
    states: list[list[Tensor]] = []
    for seed in seeds:
        torch.manual_seed(seed)
        states.append([g.get_state() for g in generators])

    def split(one: Callable[..., Any]) -> Callable[..., Any]:
        def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if len(x) % len(seeds):
                raise Diverged(f"a dropout sees shape {tuple(x.shape)}, which is not one entry an item")
            out = []
            for member, part in enumerate(x.chunk(len(seeds))):
                for generator, state in zip(generators, states[member], strict=True):
                    generator.set_state(state)
                out.append(one(part, *args, **kwargs))
                states[member] = [g.get_state() for g in generators]
            return torch.cat(out)

        return forward

    changed = list(modules)
    try:
        for m in changed:
            m.forward = split(m.forward)
        yield
    finally:
        for m in changed:
            m.__dict__.pop("forward", None)
