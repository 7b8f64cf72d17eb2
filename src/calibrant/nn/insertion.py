"""Insert layers into any network as hooks on the input or on the output of a module.

Names, parameters and the `state_dict` stay as they are. Copies of the network have the layers too, and removing them
leaves no trace.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.hooks import RemovableHandle

from calibrant.errors import InputError
from calibrant.nn.tracing import first_argument

Network = TypeVar("Network", bound=nn.Module)
Side = Literal["before", "after"]


class Inserted:
    """A hook that applies its layer to the input (side "before") or the output ("after") of a module."""

    def __init__(self, layer: nn.Module, name: str, side: Side) -> None:
        self.layer, self.name, self.side = layer, name, side
        self.argument, self.key = "", -1

    def __setstate__(self, state: dict[str, Any]) -> None:
        # torch numbers hooks by a counter of the process; without this, a new hook could get the number of this one
        vars(self).update(state)
        RemovableHandle.next_id = max(RemovableHandle.next_id, self.key + 1)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], given: Any = None) -> Any:
        """Apply the layer. `given` is the module's output, or its keyword arguments for side "before"."""
        if self.side == "after":
            return self._apply(given, "returned")
        if given and not args and self.argument in given:
            return args, {**given, self.argument: self._apply(given[self.argument], f"took as {self.argument}=")}
        taken = self._apply(args[0] if args else None, "took as its first argument"), *args[1:]
        return taken if given is None else (taken, given)

    def _apply(self, taken: Any, said: str = "took") -> Any:
        if isinstance(taken, Proxy):  # symbolic tracing by torch.fx, which has no name for a layer in a hook
            return self.layer.forward(taken)
        if not isinstance(taken, Tensor):
            raise InputError(f"{self.name!r} {said} {type(taken).__name__}, not a feature map; smooth another module")
        try:
            return self.layer(taken)
        except InputError as error:
            raise InputError(f"{self.side} {self.name!r}: {error}") from None


def insert(model: nn.Module, hook: Inserted, *, first: bool = False) -> None:
    """Register the hook on the module that it names, as the last or the first of its hooks."""
    module = model.get_submodule(hook.name)
    if hook.side == "before":
        hook.argument = first_argument(module)
        hook.key = module.register_forward_pre_hook(hook, prepend=first, with_kwargs=True).id
    else:
        hook.key = module.register_forward_hook(hook, prepend=first).id


def inserted(model: nn.Module, kind: type[Inserted] = Inserted) -> list[tuple[str, nn.Module, Any]]:
    """Return (name, module, hook) for every hook of exactly this kind, in the order of insertion."""
    found = [(name, m, hook) for name, m in model.named_modules() for hook in hooks(m) if type(hook) is kind]
    return sorted(found, key=lambda row: row[2].key)


def hooks(module: nn.Module) -> list[Any]:
    """Return all hooks on the input and the output of this module."""
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def every_module(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of a network, and those of the layers inserted into it."""
    for module in model.modules():
        yield module
        for hook in hooks(module):
            if isinstance(hook, Inserted):
                yield from hook.layer.modules()


def has_foreign_hooks(model: nn.Module) -> bool:
    """Return whether hooks that are not our insertions are called when the network runs."""
    others = (h for m in every_module(model) for h in hooks(m) if not isinstance(h, Inserted))
    return _has_any_global_hook() or any(True for _ in others)  # type: ignore[no-untyped-call]


def remove(module: nn.Module, hook: Inserted) -> None:
    """Remove the hook from the module."""
    before = (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)
    for held in before if hook.side == "before" else (module._forward_hooks,):
        del held[hook.key]


def deep_copy(model: Network) -> Network:
    """Return a copy of the model, or raise an error that tells the remedy."""
    try:
        with torch.inference_mode(False):  # a copy made in inference mode could never be trained
            return copy.deepcopy(model)
    except RuntimeError as error:
        raise InputError(f"{type(model).__name__} cannot be copied ({error}); use inplace=True") from error
