"""Find the networks behind a predictor, and leave them as they were."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.nn.evaluation import device_of, evaluation

DEPTH = 4
"""How many objects deep to look for networks: a function, its object, a list in that object, an ensemble."""


@contextmanager
def untouched(predictor: Any, device: torch.device) -> Iterator[None]:
    """Eval mode and frozen parameters inside; modes, flags and global generators are restored afterwards.

    In eval mode BatchNorm keeps its statistics. The caller's autocast is off: an attack itself decides what it computes
    in half precision. cuDNN does not benchmark its algorithms inside: batches shrink as items finish, and it would
    benchmark every new size.
    """
    cudnn = torch.backends.cudnn
    benchmark = cudnn.benchmark
    networks = modules(predictor)
    flags = [(p, p.requires_grad) for network in networks for p in network.parameters()]
    cuda = [device] if device.type == "cuda" else []
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        stack.enter_context(evaluation(*networks))
        stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(torch.inference_mode(False))  # the caller's inference mode would forbid gradients
        try:
            cudnn.benchmark = False
            for p, _ in flags:
                p.requires_grad = False
            yield
        finally:
            cudnn.benchmark = benchmark
            for p, flag in flags:
                p.requires_grad = flag


def modules(predictor: Any) -> list[nn.Module]:
    """The networks behind a predictor: itself, or those that an object, a method or a function refers to."""
    found: dict[int, nn.Module] = {}
    _collect(predictor, found, set(), DEPTH)
    return list(found.values())


def _collect(held: Any, found: dict[int, nn.Module], seen: set[int], depth: int) -> None:
    if isinstance(held, nn.Module):
        found[id(held)] = held
    elif depth and id(held) not in seen and not isinstance(held, (Tensor, type, ModuleType, str, bytes)):
        seen.add(id(held))
        for each in contents(held):
            _collect(each, found, seen, depth - 1)


def contents(held: Any) -> Iterable[Any]:
    """What a container, a function (its closure and the globals it names) or an object refers to."""
    if isinstance(held, Mapping):
        return held.values()
    if isinstance(held, (list, tuple, set, frozenset)):
        return held
    if isinstance(held, FunctionType):
        names = inspect.getclosurevars(held)
        return [*names.nonlocals.values(), *names.globals.values(), *(held.__defaults__ or ())]
    if isinstance(held, MethodType):
        return [held.__self__]
    if isinstance(held, functools.partial):
        return [held.func, *held.args, *held.keywords.values()]
    return [*getattr(held, "__dict__", {}).values(), getattr(held, "model", None), getattr(held, "models", None)]


def home(predictor: Any, default: torch.device) -> torch.device:
    """The device of the predictor's networks."""
    return device_of(modules(predictor), default)
