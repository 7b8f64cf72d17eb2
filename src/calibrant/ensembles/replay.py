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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from calibrant.ensembles.calls import Calls


class Diverged(RuntimeError):
    """A later pass does other operations than the first: its shared part cannot be replayed."""


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Results of the shared operations on the batch `x`, in the order of one forward pass."""

    def __init__(self, x: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.items = len(x)
        self.results: list[tuple[Any, Any]] = []  # (operation, what it gave)
        self.moving: set[int] = {_place(x)}  # storages that depend on x
        self.storages: set[int] = set()  # storages that the shared part made or saw
        self.read: set[int] = set()  # those of them that the rest reads,
        self.written: set[int] = set()  # and writes
        self.forgotten: list[_Blank] = []  # results that nobody reads
        self.saved: dict[int, tuple[Any, Any]] = {}  # memory, and what was in it
        self.repeated: dict[Any, Tensor] = {}
        self.scratch: dict[Any, Tensor] = {}  # memory of the stand-ins, by type and device: nobody reads it
        self.widest = 0  # bytes of the largest result after the shared part
        self.recorded = False  # the first pass is complete
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
        for blank in self.forgotten:
            dtype, device = blank.kind
            needed, memory = blank.span(copies), self.scratch.get(blank.kind)
            if memory is None or len(memory) < needed:
                self.scratch[blank.kind] = torch.empty(needed, dtype=dtype, device=device)
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
        self.read |= {_place(output)} & self.storages
        return output

    def complete(self) -> None:
        """The first pass went through: forget what the rest of the network does not read."""
        self.results = [(f, tree_map(self._forget, r)) for f, r in self.results]
        self.calls.made = {k: (end, tree_map(self._forget, r)) for k, (end, r) in self.calls.made.items()}
        self.storages = {_place(t) for _, r in self.results for t in tree_leaves(r) if isinstance(t, Tensor)}
        kept = [*self.results, *self.calls.made.values()]
        self.forgotten = [b for _, r in kept for b in tree_leaves(r) if isinstance(b, _Blank)]
        self.recorded = True

    @property
    def idle(self) -> int:
        """Bytes a copy that stand-ins reserve and nobody touches."""
        return max((b.span() * b.kind[0].itemsize for b in self.forgotten), default=0)

    def _forget(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or _place(value) in self.read or _place(value) not in self.moving:
            return value
        return _Blank(value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        if self.shared and _random(func, args, kwargs):  # an F.dropout that is always on, say: no module announces it
            self.boundary()
        if self.shared and self.recorded:
            if self.position == len(self.results) or self.results[self.position][0] is not func:
                raise Diverged(f"{func} is not what the first pass did here")
            self.position += 1
            return tree_map(self.again, self.results[self.position - 1][1])
        used = {_place(t) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        if self.shared:
            result = func(*args, **kwargs)
            self.results.append((func, result))
            made = {_place(t) for t in tree_leaves(result) if isinstance(t, Tensor)}
            self.storages |= made
            if used & self.moving:
                self.moving |= made | {_place(t) for t in _mutated(func, args, kwargs)}
            return result
        if used & {_place(memory) for memory in self.scratch.values()}:
            raise Diverged(f"{func} reads what the first pass did not")
        if not self.recorded:
            self.read |= used & self.storages
        for tensor in _mutated(func, args, kwargs):
            place = _place(tensor)
            if place in self.storages:  # a result that the shared part made is about to change: remember what it was
                self.written.add(place)
                if place not in self.saved:
                    memory: Any = tensor.untyped_storage()  # all of it: the next write may be to another view
                    self.saved[place] = (memory, memory.clone())
        result = func(*args, **kwargs)
        if not self.recorded:
            sizes = (t.numel() * t.element_size() for t in tree_leaves(result) if isinstance(t, Tensor))
            self.widest = max(self.widest, *sizes, 0)
        return result

    def outside(self, f: Callable[[], Any]) -> Any:
        """f(), whose operations are none of the network's."""
        self.paused = True
        try:
            return f()
        finally:
            self.paused = False

    def again(self, value: Any) -> Any:
        """A recorded result for the current pass."""
        if isinstance(value, _Blank):
            return self._stand_in(value)
        if not isinstance(value, Tensor):
            return value
        # the same memory in a new tensor: autograd marks what a view returns, and may mark it only once
        if self.copies == 1 or _place(value) not in self.moving:
            return value.detach()
        key = (_place(value), value.storage_offset(), value.shape, value.stride(), value.dtype)
        if key not in self.repeated:
            if value.ndim == 0 or len(value) % self.items:
                raise Diverged(f"a result of shape {tuple(value.shape)} is not one entry an item")
            if key[0] in self.written and any(other[0] == key[0] for other in self.repeated):
                raise Diverged("the network changes in place what it also sees through a view")
            self.repeated[key] = torch.cat([value] * self.copies)
        return self.repeated[key].detach()

    def _stand_in(self, blank: _Blank) -> Tensor:
        """A tensor that looks like the forgotten one, on memory that all stand-ins share."""
        return self.scratch[blank.kind].as_strided(blank.for_copies(self.copies), blank.stride)


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


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _mutated(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The tensors that an operation writes to."""
    if not func._schema.is_mutable:
        return
    for spec, value in zip(func._schema.arguments, (*args, *kwargs.values()), strict=False):
        if spec.alias_info is not None and spec.alias_info.is_write and isinstance(value, Tensor):
            yield value


def _random(func: Any, args: Any, kwargs: Any) -> bool:
    """Does the operation draw from a generator? Attention does only where it is given a rate."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for spec, value in zip(func._schema.arguments, args, strict=False):
        kwargs = {**kwargs, spec.name: value}
    if any(spec.name == "dropout_p" for spec in func._schema.arguments):
        return bool(kwargs.get("dropout_p", 0.0))
    return True


@contextmanager
def shared(tape: Tape, starts: Iterable[nn.Module], copies: int = 1, whole: nn.Module | None = None) -> Iterator[None]:
    """One forward pass under the tape: recorded the first time, replayed later, for `copies` members at once.

    `whole`: a network whose modules are replayed as a whole where all of a module is shared; only for one copy.
    """
    hooks = [m.register_forward_pre_hook(lambda *_: tape.boundary()) for m in starts]
    tape.begin(copies)
    try:
        with tape, tape.calls.through(whole, tape) if whole is not None and copies == 1 else nullcontext():
            yield
        if not tape.recorded:
            tape.complete()
    finally:
        for hook in hooks:
            hook.remove()
        tape.finish()
