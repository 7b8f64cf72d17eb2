"""ReLU6 everywhere (SS C.3): every ReLU of a network bounded, `relu6(model)`; exactly undone by `unrelu6`.

Where smoothing bounds a stage once, before it is blurred, this bounds each activation. The paper finds no consistent
gain ("a lot of ReLU6s overly regularize"). Weights, names and hooks stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from torch import nn

from calibrant.errors import InputError
from calibrant.nn.insertion import copied

Network = TypeVar("Network", bound=nn.Module)

HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks")  # fmt: skip


class Bounded(nn.ReLU6):
    """ReLU6 in a ReLU's place; it keeps that ReLU, for the way back."""

    def __init__(self, was: nn.ReLU) -> None:
        super().__init__(inplace=was.inplace)
        self.was = (was,)  # in a tuple, so that it does not become a submodule
        self.training = was.training
        for name in HOOKS:
            setattr(self, name, getattr(was, name))  # the same dictionary: what is hooked on one is on the other


def relu6(model: Network, *, inplace: bool = False) -> Network:
    """A copy of `model` whose `nn.ReLU` modules are all `nn.ReLU6`. A functional relu is out of reach."""
    if bounded(model):
        raise InputError("this model has ReLU6 everywhere already; unrelu6(model) gives its ReLUs back")
    if not any(type(m) is nn.ReLU for m in model.modules()):
        raise InputError(f"{type(model).__name__} has no nn.ReLU module to bound (a functional relu is out of reach)")
    target = model if inplace else copied(model)
    made: dict[int, Bounded] = {}  # a ReLU in several places stays one
    for parent, name, module in list(_children(target)):
        if type(module) is nn.ReLU:
            parent._modules[name] = made.setdefault(id(module), Bounded(module))
    return target


def unrelu6(model: Network) -> Network:
    """Gives every ReLU back, in place: the very modules that were there."""
    for parent, name, module in list(_children(model)):
        if isinstance(module, Bounded):
            parent._modules[name] = module.was[0]
            module.was[0].training = module.training
    return model


def bounded(model: nn.Module) -> list[str]:
    """Names of the activations that were bounded."""
    return [name for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, Bounded)]


def _children(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                yield parent, name, child
