"""Layers put into anyone's network as hooks, on what a module takes or on what it returns.

Names, parameters and `state_dict` stay as they are, copies take the layers along, and taking them out leaves nothing.
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
    """The hook: applies its layer to what a module takes or, where no module follows, to what it returns."""

    def __init__(self, layer: nn.Module, name: str, side: Side) -> None:
        self.layer, self.name, self.side = layer, name, side
        self.argument, self.key = "", -1

    def __setstate__(self, state: dict[str, Any]) -> None:
        # torch numbers hooks by a counter of the process: in another one, a new hook would get this one's number
        vars(self).update(state)
        RemovableHandle.next_id = max(RemovableHandle.next_id, self.key + 1)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], given: Any = None) -> Any:
        """`given`: what the module returned or, before it, its keyword arguments."""
        if self.side == "after":
            return self._applied(given, "returned")
        if given and not args and self.argument in given:
            return args, {**given, self.argument: self._applied(given[self.argument], f"took as {self.argument}=")}
        taken = self._applied(args[0] if args else None, "took as its first argument"), *args[1:]
        return taken if given is None else (taken, given)

    def _applied(self, taken: Any, said: str = "took") -> Any:
        if not isinstance(taken, Tensor):
            return self._no_map(taken, said)
        try:
            return self.layer(taken)
        except InputError as error:
            raise InputError(f"{self.side} {self.name!r}: {error}") from None

    def _no_map(self, taken: Any, said: str) -> Any:
        if type(taken) in (tuple, list) and self.side == "before":  # several maps: the layer smooths each
            return type(taken)(self._applied(part, said) for part in taken)
        if isinstance(taken, Proxy):  # torch.fx has no name for a layer in a hook
            return self.layer.forward(taken)
        raise InputError(f"{self.name!r} {said} {type(taken).__name__}, not a feature map; smooth another module")


def insert(model: nn.Module, hook: Inserted) -> None:
    """On the module that the hook names."""
    module = model.get_submodule(hook.name)
    if hook.side == "before":
        hook.argument = first_argument(module)
        hook.key = module.register_forward_pre_hook(hook, with_kwargs=True).id
    else:
        hook.key = module.register_forward_hook(hook).id


def inserted(model: nn.Module, kind: type[Inserted] = Inserted) -> list[tuple[str, nn.Module, Any]]:
    """(name, module, hook) of every hook of exactly this kind, in the order of insertion."""
    found = [(name, m, hook) for name, m in model.named_modules() for hook in hooks(m) if type(hook) is kind]
    return sorted(found, key=lambda row: row[2].key)


def hooks(module: nn.Module) -> list[Any]:
    """All that is called with what this module takes or returns."""
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def every_module(model: nn.Module) -> Iterator[nn.Module]:
    """The modules of a network, and those of the layers inserted into it."""
    for module in model.modules():
        yield module
        for hook in hooks(module):
            if isinstance(hook, Inserted):
                yield from hook.layer.modules()


def listened(model: nn.Module) -> bool:
    """Whether anyone else's hooks are called when the network runs."""
    others = (h for m in every_module(model) for h in hooks(m) if not isinstance(h, Inserted))
    return _has_any_global_hook() or any(True for _ in others)  # type: ignore[no-untyped-call]


def take_out(module: nn.Module, hook: Inserted) -> None:
    before = (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)
    for held in before if hook.side == "before" else (module._forward_hooks,):
        del held[hook.key]


def copied(model: Network) -> Network:
    try:
        with torch.inference_mode(False):  # a copy made in inference mode could never be trained
            return copy.deepcopy(model)
    except RuntimeError as error:
        raise InputError(f"{type(model).__name__} cannot be copied ({error}); use inplace=True") from error
