"""Run once what every member shares: everything before the first active dropout.

The first member records, operation by operation, what the network computes until it reaches the first
module of `starts`; each later member replays those results instead of computing them, and computes the
rest. The numbers are those of the naive loop bit for bit: the same kernels see the same inputs. What the
rest of the network changes in place (an in-place dropout, say) is put back after each member.

Of the recorded results only those are kept that the rest of the network reads (or that do not depend on the input,
such as a transposed weight). A module that lies whole in the shared part is not even called again (`calls.py`): on a
CPU, walking through it takes longer than what is left to compute. `copies = G` replays for G members at once: the
network is then called on its input G times over, and what it reads of the shared part is repeated to match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_map

from calibrant.ensembles.calls import Calls
from calibrant.ensembles.operations import Operation, mapped, numbers, operation, place, places, tensors

_DECISIONS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default}


class Diverged(RuntimeError):
    """A later pass does other operations than the first: its shared part cannot be replayed."""


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Results of the shared operations on the batch `x`, in the order of one forward pass."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.items = len(x)
        self.results: list[tuple[Any, list[Any], Any]] = []  # (operation or layer, its numbers, what it gave)
        self.moving: set[int] = {place(x)}  # storages that depend on x
        self.storages: set[int] = set()  # storages that the shared part made or saw
        self.fresh: set[int] = set()  # those that it made,
        self.used: set[int] = set()  # and all that it read
        self.lasting = False  # it wrote to memory that was there before: the next pass finds something else
        self.read: set[int] = set()  # those of them that the rest reads,
        self.written: set[int] = set()  # and writes
        self.forgotten: dict[Any, _Blank] = {}  # the looks of results that nobody reads
        self.saved: dict[int, tuple[Any, Any]] = {}  # memory, and what was in it
        self.repeated: dict[Any, Tensor] = {}
        self.scratch: dict[Any, Tensor] = {}  # memory of the stand-ins, by type and device: nobody reads it
        self.unreadable: set[int] = set()  # where that memory is
        self.decides = False  # after the shared part a number of the batch becomes one of Python's: an `if` on it
        self.widest = 0  # bytes of the largest result after the shared part
        self.recorded = False  # the first pass is complete
        self.confirmed = False  # a second one has done the same
        self.position, self.copies = 0, 1
        self.shared = False  # inside the shared part of the current pass
        self.calls = Calls()
        self.room = 0  # copies that the stand-ins' memory is large enough for
        self.paused = False  # the network's operations only, not our own

    def begin(self, copies: int) -> None:
        # autocast remembers the weights it has cast: a second pass would then have fewer operations than the first
        torch.clear_autocast_cache()
        self.position, self.shared, self.copies = 0, True, copies
        if copies <= self.room:
            return
        for blank in self.forgotten.values():
            dtype, device = blank.kind
            needed, memory = blank.span(copies), self.scratch.get(blank.kind)
            if memory is None or len(memory) < needed:
                self.scratch[blank.kind] = torch.empty(needed, dtype=dtype, device=device)
        self.unreadable = places(self.scratch) - {0}  # nothing lies at 0
        self.room = copies if self.recorded else 0

    def boundary(self) -> None:
        """The first start was reached: what follows differs between members."""
        self.shared = False

    def finish(self) -> None:
        for memory, original in self.saved.values():
            memory.copy_(original)
        self.saved.clear()
        self.repeated.clear()
        torch.clear_autocast_cache()

    def keep(self, output: Tensor) -> Tensor:
        """What the network gives is read too, also when no start was reached and all of it is shared."""
        self.read |= {place(output)} & self.storages
        return output

    def complete(self) -> None:
        """A pass went through. After the first, forget what the rest of the network does not read."""
        self.confirmed = self.recorded
        if self.recorded:
            return
        self.results = [(f, given, mapped(self._forget, r)) for f, given, r in self.results]
        self.calls.made = {k: (end, _tree(self._forget, r)) for k, (end, r) in self.calls.made.items()}
        self.storages = places([r for _, _, r in self.results])
        self.recorded = True

    @property
    def idle(self) -> int:
        """Bytes a copy that stand-ins reserve and nobody touches."""
        return max((b.span() * b.kind[0].itemsize for b in self.forgotten.values()), default=0)

    def _forget(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or (at := place(value)) in self.read or at not in self.moving:
            return value
        looks = (value.shape, value.stride(), value.dtype, value.device)
        if looks not in self.forgotten:
            self.forgotten[looks] = _Blank(value)
        return self.forgotten[looks]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        known = operation(func)
        if self.shared and known.draws(args, kwargs):  # an F.dropout that is always on, say: no module announces it
            self.boundary()
        if not self.shared:
            return self._rest(func, known, args, kwargs)
        if not self.recorded:
            return self._record(func, known, args, kwargs)
        return self._repeat(func, numbers(args, kwargs))

    def layer(self, m: nn.Module, forward: Callable[..., Any], x: Tensor) -> Any:
        """A module that is one operation to us: m(x) the first time, and what that was later."""
        if self.recorded:
            return self.outside(lambda: self._repeat(m, []))
        at = place(x)
        self.lasting |= bool(getattr(m, "inplace", False)) and at not in self.fresh
        return self._note(m, [], self.outside(lambda: forward(x)), {at})

    def _record(self, func: Any, known: Operation, args: Any, kwargs: Any) -> Any:
        used, written = places(args, kwargs), places(list(known.written(args, kwargs)))
        self.lasting |= not written <= self.fresh
        result = self._note(func, numbers(args, kwargs), func(*args, **kwargs), used)
        if not self.moving.isdisjoint(used):
            self.moving |= written
        return result

    def _note(self, what: Any, given: list[Any], result: Any, used: set[int]) -> Any:
        self.results.append((what, given, result))
        made = places(result)
        self.used |= used
        self.storages |= made
        self.fresh |= made if what is torch.ops.aten.lift_fresh.default else made - used
        if not self.moving.isdisjoint(used):
            self.moving |= made
        return result

    def _repeat(self, what: Any, given: list[Any]) -> Any:
        if self.position == len(self.results) or self.results[self.position][0] is not what:
            raise Diverged(f"{what} is not what the first pass did here")
        _, first, result = self.results[self.position]
        if self.copies > 1 and first != given:  # of a larger batch, a whole number may be the number of items
            first, given = ([n for n in both if type(n) is float] for both in (first, given))
        if first != given:
            raise Diverged(f"{what} is given other numbers than in the first pass")
        self.position += 1
        return mapped(self.again, result)

    def _rest(self, func: Any, known: Operation, args: Any, kwargs: Any) -> Any:
        """An operation after the shared part: it is run; what it changes of the shared part is remembered first."""
        used = places(args, kwargs)
        if not used.isdisjoint(self.unreadable):
            raise Diverged(f"{func} reads what the first pass did not")
        for tensor in known.written(args, kwargs):
            if (at := place(tensor)) in self.storages:
                self.written.add(at)
                if at not in self.saved:
                    memory: Any = tensor.untyped_storage()  # all of it: the next write may be to another view
                    self.saved[at] = (memory, memory.clone())
        result = func(*args, **kwargs)
        if not self.recorded:
            self.read |= used & self.storages
            self.decides |= func in _DECISIONS
            self.widest = max(self.widest, *(t.numel() * t.element_size() for t in tensors(result)), 0)
        return result

    def outside(self, f: Callable[[], Any]) -> Any:
        """f(), whose operations we need not see."""
        if _get_current_dispatch_mode() is not self:  # the network entered a mode of its own: ours must stay below it
            self.paused = True
            try:
                return f()
            finally:
                self.paused = False
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            return f()
        finally:
            self.__enter__()  # type: ignore[no-untyped-call]

    def apart(self, x: Tensor, f: Callable[[], Any]) -> Any:
        """f(), which reads `x` and writes to nothing that was there before."""
        if place(x) in self.unreadable:
            raise Diverged("a dropout reads what the first pass did not")
        return self.outside(f)

    def returned(self, output: Any) -> Any:
        """What a module gave in the first pass, for the current one."""
        return self.outside(lambda: _tree(self.again, output))

    def again(self, value: Any) -> Any:
        """A recorded result for the current pass."""
        if isinstance(value, _Blank):  # a tensor that looks like it, on memory that all stand-ins share
            return self.scratch[value.kind].as_strided(value.for_copies(self.copies), value.stride)
        if not isinstance(value, Tensor):
            return value
        # the same memory in a new tensor: autograd marks what a view returns, and may mark it only once
        if self.copies == 1 or (at := place(value)) not in self.moving:
            return value.detach()
        key = (at, value.storage_offset(), value.shape, value.stride(), value.dtype)
        if key not in self.repeated:
            if value.ndim == 0 or len(value) % self.items:
                raise Diverged(f"a result of shape {tuple(value.shape)} is not one entry an item")
            if at in self.written and any(other[0] == at for other in self.repeated):
                raise Diverged("the network changes in place what it also sees through a view")
            self.repeated[key] = torch.cat([value] * self.copies)
        return self.repeated[key].detach()


class _Blank:
    """What is left of a result that nobody reads: its shape and strides. Kernels choose their path by them (cuDNN's
    BatchNorm copies what is not contiguous), and a stand-in that looks different would make another pass of it."""

    def __init__(self, of: Tensor) -> None:
        self.shape, self.stride = tuple(of.shape), of.stride()
        self.kind = (of.dtype, of.device)

    def for_copies(self, copies: int) -> tuple[int, ...]:
        return (self.shape[0] * copies, *self.shape[1:]) if self.shape else ()

    def span(self, copies: int = 1) -> int:
        """Numbers from its first to its last."""
        shape = self.for_copies(copies)
        return 1 + sum((n - 1) * step for n, step in zip(shape, self.stride, strict=True)) if 0 not in shape else 0


def _tree(f: Callable[[Any], Any], output: Any) -> Any:
    """f of every entry of what a module returned, which may be any structure."""
    return f(output) if isinstance(output, (Tensor, _Blank)) else tree_map(f, output)


@contextmanager
def shared(tape: Tape, starts: Iterable[nn.Module], copies: int = 1, whole: nn.Module | None = None) -> Iterator[None]:
    """One forward pass under the tape: recorded the first time, replayed later, for `copies` members at once.

    `whole`: a network whose modules are replayed as a whole where all of a module is shared.
    """
    hooks = [m.register_forward_pre_hook(lambda *_: tape.boundary()) for m in starts]
    tape.begin(copies)
    try:
        with tape, tape.calls.through(whole, tape) if whole is not None else nullcontext():
            yield
        tape.complete()
    finally:
        for hook in hooks:
            hook.remove()
        tape.finish()
