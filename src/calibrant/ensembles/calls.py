"""Replaying whole modules: the outermost calls that lie in the shared part, and what they gave.

The first pass records them; the second walks through all operations once more, which shows that the network does the
same again; from the third on a recorded call returns at once. A module is left alone if anyone's hooks are on it
or below it, since they would not run, and if it returns something that is not made of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

if TYPE_CHECKING:
    from calibrant.ensembles.replay import Tape


class Calls:
    """Of one tape: (module, where on the tape its call begins) → (where it ends, what it returned)."""

    def __init__(self) -> None:
        self.made: dict[tuple[nn.Module, int], tuple[int, Any]] = {}
        self.passes = 0

    @contextmanager
    def through(self, model: nn.Module, tape: Tape) -> Iterator[None]:
        """One pass: the first records, the second only walks, later ones return what was recorded."""
        self.passes += 1
        if self.passes == 1:
            chosen, wrap = [m for m in model.modules() if _silent(m)], self._recording
        elif self.passes == 2:
            chosen, wrap = [], self._recording
        else:
            chosen, wrap = list(dict.fromkeys(m for m, _ in self.made)), self._replaying
        own = [(m, m.__dict__.get("forward")) for m in chosen]
        try:
            for m in chosen:
                m.__dict__["forward"] = wrap(m, m.forward, tape)
            yield
        finally:
            for m, forward in own:
                if forward is None:
                    m.__dict__.pop("forward", None)
                else:
                    m.__dict__["forward"] = forward

    def _recording(self, m: nn.Module, forward: Callable[..., Any], tape: Tape) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = len(tape.results)
            output = forward(*args, **kwargs)
            if tape.shared and all(isinstance(leaf, Tensor) for leaf in tree_leaves(output)):
                # the calls inside are part of this one
                self.made = {k: v for k, v in self.made.items() if k[1] < begin}
                self.made[m, begin] = (len(tape.results), output)
            return output

        return call

    def _replaying(self, m: nn.Module, forward: Callable[..., Any], tape: Tape) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            recorded = self.made.get((m, tape.position)) if tape.shared else None
            if recorded is None:
                return forward(*args, **kwargs)
            tape.position, output = recorded
            return tape.outside(lambda: tree_map(tape.again, output))

        return call


def _silent(m: nn.Module) -> bool:
    """Nobody listens to it or to what is inside."""
    return not any(hooks for inner in m.modules() for hooks in (inner._forward_hooks, inner._forward_pre_hooks))
