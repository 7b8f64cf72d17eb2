"""Find the networks behind a predictor, leave them as they were, and identify them by a hash."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.files.hashed import tensor_hash
from calibrant.nn.activations import bounded
from calibrant.nn.antialias import blurpooled
from calibrant.nn.evaluation import device_of, evaluation
from calibrant.nn.surgery import smoothed

DEPTH = 4
"""How many levels of objects are searched for networks: a function, its object, a list in that object, an ensemble."""


@contextmanager
def untouched(predictor: Any, device: torch.device) -> Iterator[None]:
    """Put the networks into eval mode and freeze their parameters; restore modes, flags and generators afterwards.

    In eval mode BatchNorm keeps its statistics. The caller's autocast is switched off, because the attack decides what
    it computes in half precision. cuDNN's benchmark is switched off, because it would run again for every batch size.
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
    """Return the networks behind a predictor: itself, or those that an object, a method or a function refers to."""
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
    """Return what a container, an object or a function (by its closure and globals) refers to."""
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


def predictor_device(predictor: Any, default: torch.device) -> torch.device:
    """Return the device of the predictor's networks, or `default` if it has none."""
    return device_of(modules(predictor), default)


def _plain(value: Any) -> bool:
    """Return whether the value is a number, a text, or a list of such values."""
    if isinstance(value, (list, tuple)):
        return bool(value) and all(_plain(one) for one in value)
    return isinstance(value, (int, float, str))


def weights_hash(predictor: Any) -> str:
    """Return a content hash of a network, or of an object: its networks, tensors and plain settings."""
    digest = hashlib.sha256(type(predictor).__name__.encode())
    networks, tensors_held = modules(predictor), []
    if not isinstance(predictor, nn.Module):
        # attributes that begin with an underscore are caches
        own = {k: v for k, v in sorted(getattr(predictor, "__dict__", {}).items()) if not k.startswith("_")}
        parts = [each for value in own.values() for each in (value.values() if isinstance(value, Mapping) else [value])]
        tensors_held = [each for each in parts if isinstance(each, Tensor)]
        if isinstance(predictor, (FunctionType, MethodType)) or not own or not (networks or tensors_held):
            raise InputError(
                f"a store cannot tell this {type(predictor).__name__} from another one; pass the network itself, or "
                "leave store out"
            )
        digest.update(json.dumps({k: v for k, v in own.items() if _plain(v)}).encode())
    for network in networks:
        digest.update(_stable_repr(network))
        kinds = [layers for layers in (smoothed(network), blurpooled(network), bounded(network)) if layers]
        for layers in kinds or [{}]:  # one by one, because layers of two kinds may be at the same place
            digest.update(_stable_repr(layers))
        for name, tensor in network.state_dict().items():
            if isinstance(tensor, Tensor):
                digest.update(name.encode())
                digest.update(tensor_hash(tensor).encode())
    for tensor in tensors_held:
        digest.update(tensor_hash(tensor).encode())
    return digest.hexdigest()


def _stable_repr(value: Any) -> bytes:
    """Return the repr without memory addresses, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value)).encode()
