"""All members of MC dropout on one batch: replayed one by one, side by side, or whole, whichever is quickest here.

The masks are the same either way, those of (seed, member). Replayed and whole, the numbers are the naive loop's bit
for bit; side by side (on a GPU, or when asked for) they agree to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from calibrant.ensembles.dropping import splits
from calibrant.ensembles.ensemble import Network, checked
from calibrant.ensembles.replay import Diverged, Tape, shared
from calibrant.ensembles.side_by_side import agrees, side_by_side, together
from calibrant.errors import InputError


class Passes:
    """Passes of `model` over `x`, inside the scope that has its dropout on; `call(j, x)` is member j's whole pass."""

    def __init__(
        self, model: nn.Module, x: Tensor, active: list[nn.Module], call: Callable[[int, Tensor], Tensor]
    ) -> None:
        self.model, self.x, self.active, self.call = model, x, active, call
        self.tape = Tape(x)
        self.alike = True  # so far every pass did the same operations

    def whole(self, j: int) -> Tensor:
        return checked(self.call(j, self.x), len(self.x))

    def replayed(self, j: int) -> Tensor:
        """Member j alone: the naive loop's numbers bit for bit."""
        if not self.alike:
            return self.whole(j)
        try:
            with shared(self.tape, self.active, whole=self.model):
                logits = self.tape.keep(self.whole(j))
            return logits.clone()  # without an active dropout the tape holds the logits itself
        except Diverged:  # a network whose operations differ from pass to pass: run it whole, this time and later
            self.alike = False
            return self.whole(j)

    def stream(
        self, network: Network, seeds: Sequence[int], devices: Sequence[torch.device], asked: int | None
    ) -> Iterator[Tensor]:
        """Members in order, blocks of [G, N, K]; `asked` of them at once, or as many as fill the device."""
        count, x = len(seeds), self.x
        began = time.thread_time()
        first = self.replayed(0)
        full = time.thread_time() - began
        free = torch.cuda.mem_get_info(x.device)[0] if x.is_cuda else None
        group = asked or together(count, self.tape.widest, self.tape.idle, free)
        if not all(map(splits, self.active)):
            group = 1
        batched = self._grouped(network, seeds[:group], devices) if group > 1 else None
        if batched is None or not agrees(first, batched[0]):  # items that see each other: member after member
            yield first[None]
            rest = map(self.replayed, range(1, count)) if x.is_cuda else self._cheaply(count, full)
            yield from (logits[None] for logits in rest)
            return
        yield torch.cat([first[None], batched[1:]])
        for start in range(group, count, group):
            if (more := self._grouped(network, seeds[start : start + group], devices)) is not None:
                yield more
            else:
                yield from (self.replayed(j)[None] for j in range(start, min(start + group, count)))

    def _cheaply(self, count: int, full: float) -> Iterator[Tensor]:
        """Members 1, 2, … on a CPU, by replay or whole.

        A replay looks at every operation, in Python. Where it takes more than half of the `full` seconds of the first
        pass (little is shared), one member is run whole, and the quicker way goes on. Member 1 says nothing
        about it: the first replay walks through everything.
        """
        replayed, replaying = 0.0, True
        for j in range(1, count):
            trial = j == 3 and replayed > full / 2
            began = time.thread_time()
            logits = self.replayed(j) if replaying and not trial else self.whole(j)
            spent = time.thread_time() - began
            if j == 2:
                replayed = spent
            elif trial:
                replaying = replayed < spent
            yield logits

    def _grouped(self, network: Network, seeds: Sequence[int], devices: Sequence[torch.device]) -> Tensor | None:
        """The members of `seeds` as one batch, [G, N, K]; None where the network does not allow it."""
        x, copies = self.x, len(seeds)
        tiled = torch.cat([x] * copies)
        with side_by_side(self.active, seeds, devices, self.tape):
            try:
                with shared(self.tape, self.active, copies=copies, whole=self.model):
                    logits = network(tiled)
                return checked(logits, copies * len(x)).reshape(copies, len(x), -1)
            except (RuntimeError, InputError):  # other shapes, other operations, or no memory for a batch so large
                return None
