"""All members of MC dropout on one batch: replayed one by one, side by side, or whole, whichever is quickest here.

The masks are the same either way, those of (seed, member). Replayed and whole, the numbers are the naive loop's bit
for bit; side by side (on a GPU, or when asked for) they agree to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.ensembles.dropping import splits
from calibrant.ensembles.ensemble import Network, checked
from calibrant.ensembles.inputs import Untouched
from calibrant.ensembles.replay import Tape, shared
from calibrant.ensembles.replayable import Leaks, compiled, loose, moved_on
from calibrant.ensembles.side_by_side import agrees, side_by_side, together


class Passes:
    """Passes of `model` over `x`, inside the scope that has its dropout on; `call(j, x)` is member j's whole pass."""

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        active: list[nn.Module],
        call: Callable[[int, Tensor], Tensor],
        class_axis: int | None = None,
    ) -> None:
        self.model, self.x, self.active, self.call, self.class_axis = model, x, active, call, class_axis
        self.tape = Tape(x)
        self.alike = not compiled(model)  # so far every pass did the same operations
        self.untouched = Untouched()

    def _logits(self, output: Any) -> Tensor:
        return checked(output, len(self.x), self.class_axis)

    def whole(self, j: int) -> Tensor:
        with self.untouched(self.x):
            return self._logits(self.call(j, self.x))

    def replayed(self, j: int) -> Tensor:
        """Member j alone: the naive loop's numbers bit for bit."""
        if not self.alike:
            return self.whole(j)
        if not self.tape.recorded:
            return self._recorded(j)
        try:
            with self.untouched(self.x), shared(self.tape, self.active, whole=self.model):
                logits = self.tape.keep(self._logits(self.call(j, self.x)))
            return logits.clone()  # without an active dropout the tape holds the logits itself
        except Exception:  # it does not do what it did before, or misses what a call that was not made leaves behind:
            self.alike = False  # run it whole, this time and later. An error of its own comes again there
            return self.whole(j)

    def _recorded(self, j: int) -> Tensor:
        """The first pass, which also shows whether there may be another like it."""
        before, leaks = loose(self.model), Leaks(self.tape.moving)
        with self.untouched(self.x), shared(self.tape, self.active, whole=self.model), leaks:
            logits = self.tape.keep(self._logits(self.call(j, self.x)))
        other = moved_on(before, self.model, self.tape.used)
        self.alike = not (self.tape.lasting or leaks.found or other)
        return logits.clone()

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
        if not (self.alike and all(map(splits, self.active))) or self.tape.decides:
            group = 1
        batched = self._first_group(network, seeds[:group], devices, first) if group > 1 else None
        if batched is None:
            yield first[None]
            rest = map(self.replayed, range(1, count)) if x.is_cuda else self._cheaply(count, full)
            yield from (logits[None] for logits in rest)
            return
        yield batched
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

    def _first_group(
        self, network: Network, seeds: Sequence[int], devices: Sequence[torch.device], first: Tensor
    ) -> Tensor | None:
        """Members 0, 1, … as one batch, if that gives what member 0 gave alone: do items see each other?

        It stands in the middle of the batch, because a network that looks at its first item (or its last) would treat
        the first (or the last) member as it does alone.
        """
        middle = len(seeds) // 2
        out = self._grouped(network, [*seeds[1 : middle + 1], seeds[0], *seeds[middle + 1 :]], devices)
        if out is None or not agrees(first, out[middle]):
            return None
        if len(seeds) == 2 and not agrees(self.replayed(1), out[0]):  # two have no middle
            return None
        return torch.cat([first[None], out[:middle], out[middle + 1 :]])

    def _grouped(self, network: Network, seeds: Sequence[int], devices: Sequence[torch.device]) -> Tensor | None:
        """The members of `seeds` as one batch, [G, N, K] or [G, N, H, W, K]; None where the network cannot."""
        x, copies = self.x, len(seeds)
        tiled = torch.cat([x] * copies)
        with side_by_side(self.active, seeds, devices, self.tape):
            try:
                with shared(self.tape, self.active, copies=copies, whole=self.model):
                    logits = checked(network(tiled), copies * len(x), self.class_axis)
                return logits.reshape(copies, len(x), *logits.shape[1:])
            except Exception:  # other shapes, other operations, no memory for a batch so large: run them one by one
                return None
