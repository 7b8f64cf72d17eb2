"""A device for machines without one: tensors that say they are on CUDA, and refuse what CUDA tensors refuse.

Each wraps a tensor on the CPU. An operation on one of them and on a CPU tensor of one dimension or more raises, and so
does NumPy, so a test on any machine shows what would fail on a device. Speed and rounding are those of the CPU.
"""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

DEVICE = torch.device("cuda:0")
MIXING = ("aten::copy_", "aten::_to_copy", "aten::index", "aten::index_put_", "aten::_index_put_impl_")
"""Operations that CUDA lets mix devices: copies, and indices on the CPU."""
MADE = (torch.empty, torch.zeros, torch.ones, torch.full, torch.arange, torch.tensor, torch.eye, torch.linspace)


class Away(Tensor):
    """A tensor on the stand-in."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Self:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.size(), strides=held.stride(), dtype=held.dtype, device="meta", requires_grad=held.requires_grad
        )
        made.held = held
        return made

    device = property(lambda self: DEVICE)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert a device's tensor to numpy; use Tensor.cpu() first")

    __array__ = numpy

    def tolist(self) -> Any:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, tensors = func._schema.name, [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if name not in MIXING and any(t.ndim and not isinstance(t, Away) for t in tensors):
            raise RuntimeError(f"{name}: all tensors must be on one device, found {DEVICE} and cpu")
        if name in MIXING[2:] and not isinstance(args[0], Away):
            raise RuntimeError(f"{name}: a tensor on the CPU is indexed by one of {DEVICE}")
        device = kwargs.pop("device", None)
        plain, named = tree_map_only(Away, lambda t: t.held, (args, kwargs))
        out = func(*plain, **named)
        if name == "aten::_to_copy" and device is not None and torch.device(device).type == "cpu":
            return out
        if name == "aten::copy_":
            return args[0]
        written = [
            a for a, s in zip(args, func._schema.arguments, strict=False) if s.alias_info and s.alias_info.is_write
        ]
        written += [kwargs[s.name] for s in func._schema.arguments if s.is_out and s.name in kwargs]
        return written[0] if written else tree_map_only(Tensor, Away, out)


class StandIn(TorchFunctionMode):
    """While it is entered, tensors can be made on the stand-in and moved to it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in MADE and str(kwargs.get("device")).startswith("cuda"):
            return Away(func(*tree_map_only(Away, lambda t: t.held, args), **kwargs | {"device": "cpu"}))
        name = getattr(func, "__name__", "")
        if name == "new_tensor" and isinstance(args[0], Away):
            return Away(func(args[0].held, *args[1:], **kwargs))
        if name == "to":
            wanted = [a for a in (*args[1:], *kwargs.values()) if not isinstance(a, bool)]
            if any((a.device if isinstance(a, Tensor) else a) == DEVICE for a in wanted):
                kinds = [a.dtype if isinstance(a, Tensor) else a for a in wanted if isinstance(a, Tensor | torch.dtype)]
                held = args[0].held if isinstance(args[0], Away) else args[0]
                return Away(held.to(*kinds) if kinds else held)
        if func is torch.where and len(args) == 3:  # a number would become a tensor that does not know where it is
            dtype = next((a.dtype for a in args[1:] if isinstance(a, Tensor)), None)
            args = (args[0], *(a if isinstance(a, Tensor) else torch.tensor(a, dtype=dtype) for a in args[1:]))
        return func(*args, **kwargs)


def away(held: Tensor) -> Tensor:
    return Away(held.clone())
