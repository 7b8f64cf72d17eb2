"""ReLU6 everywhere (SS C.3): `relu6(model)` bounds every ReLU of a network, and `unrelu6` undoes exactly that.

Smoothing bounds a stage once, before the blur; this bounds each activation. The paper finds no consistent gain ("a lot
of ReLU6s overly regularize"). Weights, names and hooks stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from torch import nn

from calibrant.errors import InputError
from calibrant.nn.insertion import deep_copy

Network = TypeVar("Network", bound=nn.Module)

HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks")  # fmt: skip


class Bounded(nn.ReLU6):
    """A ReLU6 that replaces a ReLU, and keeps that ReLU for `unrelu6`."""

    def __init__(self, original: nn.ReLU) -> None:
        super().__init__(inplace=original.inplace)
        self.original = (original,)  # in a tuple, so that it does not become a submodule
        self.training = original.training
        for name in HOOKS:
            setattr(self, name, getattr(original, name))  # the same dictionary, so that both have the same hooks


def relu6(model: Network, *, inplace: bool = False) -> Network:
    """Return a copy of `model` in which every `nn.ReLU` is an `nn.ReLU6`. A functional relu is out of reach."""
    if bounded(model):
        raise InputError("this model has ReLU6 everywhere already; unrelu6(model) gives its ReLUs back")
    if not any(type(m) is nn.ReLU for m in model.modules()):
        raise InputError(f"{type(model).__name__} has no nn.ReLU module to bound (a functional relu is out of reach)")
    target = model if inplace else deep_copy(model)
    made: dict[int, Bounded] = {}  # a ReLU in several places stays one module
    for parent, name, module in list(_children(target)):
        if type(module) is nn.ReLU:
            parent._modules[name] = made.setdefault(id(module), Bounded(module))
    return target


def unrelu6(model: Network) -> Network:
    """Put the original ReLU modules back, in place."""
    for parent, name, module in list(_children(model)):
        if isinstance(module, Bounded):
            (original,) = module.original
            parent._modules[name] = original
            original.training = module.training
    return model


def bounded(model: nn.Module) -> list[str]:
    """Return the names of the bounded activations."""
    return [name for name, m in model.named_modules(remove_duplicate=False) if isinstance(m, Bounded)]


def _children(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in model.modules():
        for name, child in parent._modules.items():
            if child is not None:
                yield parent, name, child
