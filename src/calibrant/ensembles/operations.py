"""What an operation of PyTorch reads, writes and draws, from its schema: what a replay must know of each one.

A network makes hundreds of them a pass, and each is looked at in Python: so what a schema says is worked out once,
and arguments are walked by hand, since an operation takes tensors, lists of them, and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Operation:
    """Does it draw from a generator, where is attention's rate (without which it does not), what does it write to?"""

    random: bool
    rate: int | None
    writes: tuple[tuple[int, str], ...]  # each by its position and its name
    norm: bool = False  # BatchNorm: in training it writes its statistics, which its schema conceals

    def draws(self, args: Any, kwargs: Any) -> bool:
        if not self.random or self.rate is None:
            return self.random
        return bool(args[self.rate] if len(args) > self.rate else kwargs.get("dropout_p", 0.0))

    def written(self, args: Any, kwargs: Any) -> Iterator[Tensor]:
        for position, name in self.writes:
            yield from tensors(args[position] if position < len(args) else kwargs.get(name))
        if self.norm and args[5]:
            yield from tensors(args[3:5])


@cache
def operation(func: Any) -> Operation:
    arguments = func._schema.arguments
    names = [a.name for a in arguments]
    writes = ((i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write)
    random = torch.Tag.nondeterministic_seeded in func.tags
    norm = names[3:6] == ["running_mean", "running_var", "training"]
    return Operation(random, names.index("dropout_p") if "dropout_p" in names else None, tuple(writes), norm)


def tensors(value: Any) -> list[Tensor]:
    """Every tensor in an operation's arguments or results."""
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return found
    for entry in value:
        if isinstance(entry, Tensor):
            found.append(entry)
        elif isinstance(entry, (tuple, list, dict)):
            found += tensors(entry)
    return found


def mapped(f: Callable[[Any], Any], result: Any) -> Any:
    """f of every entry of what an operation returned."""
    return type(result)(mapped(f, r) for r in result) if isinstance(result, (tuple, list)) else f(result)


def place(tensor: Tensor) -> int:
    """Which memory it lies in; views of one tensor have one."""
    return tensor.untyped_storage().data_ptr()


def places(*values: Any) -> set[int]:
    return {place(t) for value in values for t in tensors(value)}


def numbers(args: Any, kwargs: Any) -> list[Any]:
    """The plain numbers among the arguments: `x * 2` and `x * 3` are one operation."""
    found = [a for a in args if type(a) in (int, float, bool)]
    return [*found, *(a for a in kwargs.values() if type(a) in (int, float, bool))] if kwargs else found
