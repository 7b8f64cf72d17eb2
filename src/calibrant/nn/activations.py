"""ReLU6 everywhere (SS C.3): `relu6(model)` bounds every ReLU of a network at 6, and `unrelu6` undoes exactly that.

Smoothing bounds a stage once, before the blur; this bounds each activation. The paper finds no consistent gain ("a lot
of ReLU6s overly regularize"). The bound is a hook on the ReLU, so weights, names and modules stay as they are.
"""

from __future__ import annotations

from typing import TypeVar

from torch import nn

from calibrant.errors import InputError
from calibrant.nn.insertion import Inserted, deep_copy, insert, inserted, remove

Network = TypeVar("Network", bound=nn.Module)


class Bound(Inserted):
    """The hook that bounds a ReLU."""


def relu6(model: Network, *, inplace: bool = False) -> Network:
    """Return a copy of `model` in which every `nn.ReLU` is bounded at 6. A functional relu is out of reach."""
    if bounded(model):
        raise InputError("this model has ReLU6 everywhere already; unrelu6(model) gives its ReLUs back")
    relus = [name for name, m in model.named_modules() if type(m) is nn.ReLU]
    if not relus:
        raise InputError(f"{type(model).__name__} has no nn.ReLU module to bound (a functional relu is out of reach)")
    target = model if inplace else deep_copy(model)
    for name in relus:
        insert(target, Bound(nn.ReLU6(), name, "after"), first=True)  # smoothing and BlurPool follow the activation
    return target


def unrelu6(model: Network) -> Network:
    """Remove every bound, in place."""
    for _, module, hook in inserted(model, Bound):
        remove(module, hook)
    return model


def bounded(model: nn.Module) -> dict[str, nn.ReLU6]:
    """Return the inserted layers: "after NAME" → the layer."""
    return {f"{hook.side} {name}": hook.layer for name, _, hook in inserted(model, Bound)}
