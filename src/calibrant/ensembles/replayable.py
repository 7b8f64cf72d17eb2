"""Which networks may be replayed: those whose passes are alike, and whose numbers all go through PyTorch's operations.

Not one that remembers its last pass (a counter, a running mean: every pass of the naive loop sees the one before it),
not one that takes numbers out of PyTorch's sight (`.numpy()`), and not a compiled one, which draws its masks in its
own order. Such a network is run whole for every member. What cannot be seen from outside: a module that counts its
calls in Python and does something else only at the third or a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from calibrant.ensembles.operations import place, tensors

_OUT = {Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.data_ptr}


def compiled(model: nn.Module) -> bool:
    return any(type(m).__name__ == "OptimizedModule" or m._compiled_call_impl is not None for m in model.modules())


def loose(model: nn.Module) -> dict[tuple[nn.Module, str], Tensor]:
    """The tensors that modules keep beside their parameters: buffers and attributes."""
    kept = ((m, name, value) for m in model.modules() for name, value in (*vars(m).items(), *m._buffers.items()))
    return {(m, name): value for m, name, value in kept if isinstance(value, Tensor)}


def moved_on(before: dict[tuple[nn.Module, str], Tensor], model: nn.Module, used: set[int]) -> bool:
    """Did a pass replace a tensor that it had read (`used`: where it read)? The next one reads another then.

    A number that a module counts up is no sign: as a rule nobody acts on it, and where the next pass does, it differs.
    """
    after = loose(model)
    return any(after.get(key) is not value and place(value) in used for key, value in before.items())


class Leaks(TorchFunctionMode):
    """Has anyone taken numbers of the memory `of` out of PyTorch's sight?"""

    def __init__(self, of: set[int]) -> None:
        super().__init__()
        self.of, self.found = of, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        if func in _OUT and any(place(t) in self.of for t in tensors(args[:1])):
            self.found = True
        return func(*args, **(kwargs or {}))
