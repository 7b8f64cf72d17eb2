"""Replaying whole modules: the calls that lie in the shared part, and what they gave.

The first pass records them; the second walks through everything once more, which shows that the network does the
same again; from the third on the outermost recorded calls return at once. A module is left alone if anyone's hooks are
on it or below it, since they would not run, and if it returns something that is not made of tensors.

PyTorch's own layers (`PURE`) are one entry of the tape, not one for each of their operations: what they return depends
on their input and weights alone, so that the second pass need not look inside either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from calibrant.nn.insertion import hooks

if TYPE_CHECKING:
    from calibrant.ensembles.replay import Tape

PURE = {
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm, nn.LayerNorm),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Hardswish, nn.Tanh, nn.Sigmoid),
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
}
"""In eval mode a tensor in, a tensor out, and nothing else is read, drawn or written. Exactly these: a subclass may."""


class Calls:
    """Of one tape: (module, where on the tape its call begins) → (where it ends, what it returned)."""

    def __init__(self) -> None:
        self.made: dict[tuple[nn.Module, int], tuple[int, Any]] = {}
        self.layers: dict[nn.Module, None] = {}  # those of PURE, each an entry of the tape

    @contextmanager
    def through(self, model: nn.Module, tape: Tape) -> Iterator[None]:
        """One pass: the first records, the second only walks, later ones return what was recorded."""
        if tape.confirmed:
            chosen, wrap = list(dict.fromkeys(m for m, _ in self.made)), self._replaying
        elif tape.recorded:
            chosen, wrap = list(self.layers), self._walking
        else:
            chosen, wrap = silent(model), self._recording
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
        pure = type(m) in PURE and "forward" not in m.__dict__

        def call(*args: Any, **kwargs: Any) -> Any:
            begin = len(tape.results)
            if pure and tape.shared and _plain(m, args, kwargs):
                output = tape.layer(m, forward, args[0])
                self.layers[m] = None
            else:
                output = forward(*args, **kwargs)
            if tape.shared and _simple(output):
                # the calls inside are part of this one; they came last
                while self.made and next(reversed(self.made))[1] >= begin:
                    self.made.popitem()
                self.made[m, begin] = (len(tape.results), output)
            return output

        return call

    def _walking(self, m: nn.Module, forward: Callable[..., Any], tape: Tape) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if tape.shared and _plain(m, args, kwargs):
                return tape.layer(m, forward, args[0])
            return forward(*args, **kwargs)

        return call

    def _replaying(self, m: nn.Module, forward: Callable[..., Any], tape: Tape) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            recorded = self.made.get((m, tape.position)) if tape.shared else None
            if recorded is None:
                return forward(*args, **kwargs)
            tape.position, output = recorded
            return tape.returned(output)

        return call


def _simple(output: Any) -> bool:
    """Tensors in tuples, lists and dicts. Of another kind (a PackedSequence) none can be made of stand-ins."""
    if type(output) in (tuple, list, dict):
        return all(map(_simple, output.values() if type(output) is dict else output))
    return isinstance(output, Tensor)


def _plain(m: nn.Module, args: Any, kwargs: Any) -> bool:
    return len(args) == 1 and not kwargs and type(args[0]) is Tensor and not m.training


def silent(model: nn.Module) -> list[nn.Module]:
    """The modules that nobody listens to, and to nothing inside them."""
    if _has_any_global_hook():  # type: ignore[no-untyped-call]  # somebody listens to all of them
        return []
    known: dict[nn.Module, bool] = {}

    def visit(m: nn.Module) -> bool:
        if m not in known:
            known[m] = True  # a module may hold itself
            inner = [visit(child) for child in m._modules.values() if child is not None]  # all of them are to be known
            known[m] = all(inner) and not hooks(m)
        return known[m]

    visit(model)
    return [m for m, quiet in known.items() if quiet]
