"""Run once what every member shares: everything before the first active dropout.

The first member records, operation by operation, what the network computes until it reaches the first
module of `starts`; each later member replays those results instead of computing them, and computes the
rest. The numbers are those of the naive loop bit for bit: the same kernels see the same inputs. What the
rest of the network changes in place (an in-place dropout, say) is put back after each member.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map


class Diverged(RuntimeError):
    """A later pass does other operations than the first: its shared part cannot be replayed."""


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Results of the shared operations, in the order of one forward pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.results: list[tuple[Any, Any]] = []  # (operation, what it gave)
        self.storages: set[int] = set()
        self.saved: dict[int, tuple[Tensor, Tensor]] = {}
        self.recorded = False  # the shared part is complete
        self.position = 0
        self.shared = False  # inside the shared part of the current pass

    def begin(self) -> None:
        # autocast remembers the weights it has cast: a second pass would then have fewer operations than the first
        torch.clear_autocast_cache()
        self.position, self.shared = 0, True

    def boundary(self) -> None:
        """The first start was reached: what follows differs between members."""
        self.shared, self.recorded = False, True

    def finish(self) -> None:
        for tensor, original in self.saved.values():
            tensor.copy_(original)
        self.saved.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.shared and self.recorded:
            if self.position == len(self.results) or self.results[self.position][0] is not func:
                raise Diverged(f"{func} is not what the first pass did here")
            self.position += 1
            return tree_map(_alias, self.results[self.position - 1][1])
        if self.shared:
            result = func(*args, **kwargs)
            self.results.append((func, result))
            self.storages |= {t.untyped_storage().data_ptr() for t in tree_flatten(result)[0] if isinstance(t, Tensor)}
            return result
        if func._schema.is_mutable:
            self._keep(func, args, kwargs)
        return func(*args, **kwargs)

    def _keep(self, func: Any, args: Any, kwargs: Any) -> None:
        """A result that the shared part made is about to change: remember what it was."""
        for spec, value in zip(func._schema.arguments, (*args, *kwargs.values()), strict=False):
            if spec.alias_info is None or not spec.alias_info.is_write or not isinstance(value, Tensor):
                continue
            place = value.untyped_storage().data_ptr()
            if place in self.storages and place not in self.saved:
                self.saved[place] = (value, value.clone())


def _alias(value: Any) -> Any:
    """The same memory in a new tensor: autograd marks what a view returns, and may mark it only once."""
    return value.detach() if isinstance(value, Tensor) else value


@contextmanager
def shared(tape: Tape, starts: Iterable[nn.Module]) -> Iterator[None]:
    """One forward pass under the tape: recorded the first time, replayed later."""
    hooks = [m.register_forward_pre_hook(lambda *_: tape.boundary()) for m in starts]
    tape.begin()
    try:
        with tape:
            yield
    finally:
        for hook in hooks:
            hook.remove()
        tape.finish()
