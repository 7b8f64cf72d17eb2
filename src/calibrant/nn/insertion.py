"""Layers put into anyone's network as hooks, on what a module takes or on what it gives.

Names, parameters and `state_dict` stay as they are, copies take the layers along, and taking them out leaves nothing.
A module with a hook is called by a longer way in Python, which a step on a GPU may have to wait for; our own networks
have a `Passage` at the end of each stage, which goes through the hook itself, or an `Ending`, a ReLU in whose place the
hook's layer stands where that begins with a ReLU of its own.
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
from calibrant.nn.tracing import first_argument, made_in_inference

Network = TypeVar("Network", bound=nn.Module)
Side = Literal["before", "after"]


class Inserted:
    """The hook: smooths what a module takes or, where pooling is a function that has no module, what it returns."""

    through = ""  # the passage or ending that has it; none where torch calls it
    behind = ""  # the passage behind that ending, by name, and itself: names may change
    passage: Passage | None = None

    def __init__(self, layer: nn.Module, name: str) -> None:
        self.layer, self.name = layer, name
        self.side: Side = "before"
        self.argument, self.key = "", -1

    def named(self, holder: str) -> str:
        """The module that it belongs to, by the present name of the one that has it: a network may be put into another
        or taken out of it."""
        if not self.through:
            return holder
        if holder.endswith(self.through):
            return holder.removesuffix(self.through) + self.name
        outer = self.through.removesuffix(holder)
        return self.name.removeprefix(outer) if outer != self.through else self.name

    def __setstate__(self, state: dict[str, Any]) -> None:
        # torch numbers hooks by a counter of the process: in another one, a new hook would get this one's number
        vars(self).update(state)
        RemovableHandle.next_id = max(RemovableHandle.next_id, self.key + 1)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], given: Any = None) -> Any:
        """`given`: what a module gave or, before it, what it takes by keyword."""
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
        if type(taken) in (tuple, list) and self.side == "before":  # what averages each channel averages each map
            return type(taken)(self._applied(part, said) for part in taken)
        if isinstance(taken, Proxy):  # a layer in a hook is no module that torch.fx could name
            return self.layer.forward(taken)
        raise InputError(f"{self.name!r} {said} {type(taken).__name__}, not a feature map; smooth another module")


class Passage(nn.Identity):
    """Where a layer may be inserted: hands on what it is given, by way of the hook if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.hook: Inserted | None = None

    def forward(self, input: Tensor) -> Tensor:
        if self.hook is not None:
            return self.hook._applied(input)  # type: ignore[no-any-return]
        return input

    def _get_name(self) -> str:
        return "Identity"  # what it says of itself stays, and with it the hashes of networks by which results are kept


class Ending(nn.ReLU):
    """What a ReLU becomes in whose place a hook's layer stands, one that begins with a ReLU: done twice, that would be
    a quarter of what the layer costs Python, and two more passes over the map."""

    hook: Inserted

    def forward(self, input: Tensor) -> Tensor:
        return self.hook._applied(input)  # type: ignore[no-any-return]

    def _get_name(self) -> str:
        return "ReLU"


def insert(model: nn.Module, hook: Inserted, side: Side, passage: str = "", relu: str = "") -> None:
    """On the module that the hook names, or in the passage that stands there, or in place of the ReLU before that."""
    module = model.get_submodule(hook.name)
    hook.side = side
    if passage:
        hook.key, RemovableHandle.next_id = RemovableHandle.next_id, RemovableHandle.next_id + 1
        end: Any = model.get_submodule(passage)
        if relu:
            hook.behind, hook.passage = passage, end
            end = model.get_submodule(relu)
            end.__class__ = Ending
        end.hook, hook.through = hook, relu or passage
    elif side == "before":
        hook.argument = first_argument(module)
        hook.key = module.register_forward_pre_hook(hook, with_kwargs=True).id
    else:
        hook.key = module.register_forward_hook(hook).id


def inserted(model: nn.Module, kind: type[Inserted] = Inserted) -> list[tuple[str, nn.Module, Any]]:
    """(name, module that has it, hook) of every hook of exactly this kind, as they were inserted."""
    found = [
        (hook.named(name), module, hook)
        for name, module in model.named_modules()
        for hook in hooks(module)
        if type(hook) is kind
    ]
    return sorted(found, key=lambda row: row[2].key)


def hooks(module: nn.Module) -> list[Any]:
    """All that is called with this module's map before or after it."""
    within = [module.hook] if isinstance(module, (Passage, Ending)) and module.hook is not None else []
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values(), *within]


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


def apart(model: nn.Module) -> None:
    """Layers that stand in a ReLU's place stand behind it again: for who will put something else there, or between."""
    for module in list(model.modules()):
        if isinstance(module, Ending):
            hook = module.hook
            take_out(module, hook)
            assert hook.passage is not None
            hook.passage.hook = hook
            hook.through, hook.behind, hook.passage = hook.behind, "", None


def take_out(module: nn.Module, hook: Inserted) -> None:
    if isinstance(module, Ending):
        del module.hook
        module.__class__ = nn.ReLU  # type: ignore[assignment]
        return
    if isinstance(module, Passage):
        module.hook = None
        return
    before = (module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs)
    for held in before if hook.side == "before" else (module._forward_hooks,):
        del held[hook.key]


def copied(model: Network) -> Network:
    try:
        # a copy made in inference mode could never be trained
        with torch.inference_mode(made_in_inference(model)):
            return copy.deepcopy(model)
    except RuntimeError as error:
        raise InputError(f"{type(model).__name__} cannot be copied ({error}); use inplace=True") from error
