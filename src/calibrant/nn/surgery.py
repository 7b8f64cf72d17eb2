"""`calibrant.smooth(model)`: smoothing layers in anyone's network, without a fork and without touching its weights.

The stages are found by tracing: one forward pass records which module takes which feature map and returns which. A
module that makes the map smaller is followed inwards while it merely hands its input on; where the input goes to
several layers (a residual block and its shortcut) or into a layer of its own, that is where smoothing goes: before it,
and before global pooling. The stem (what sees the image, or has one convolution before it) is left alone.

A smoothing layer is a hook on the module that follows it: names, parameters and `state_dict` stay as they are, copies
take it along, and `unsmooth` takes exactly it out again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from calibrant.errors import InputError
from calibrant.nn.blur import Padding
from calibrant.nn.smoothing import Smooth, Upper

Network = TypeVar("Network", bound=nn.Module)
Where = str | Sequence[str] | Callable[[str, nn.Module], bool]

STAGES = "before-downsampling"
SIZES = (32, 64, 224, 299)
"""Edges tried for the image of the trace when no example is given."""


@dataclass(frozen=True)
class Visit:
    """One module in one forward pass: the map it took and the map it returned."""

    name: str
    took: int  # identity of the tensor, the same for all modules that take it
    size_in: tuple[int, ...]
    size_out: tuple[int, ...]  # () when it returned no map
    convolutions: int  # executed before it


@dataclass(frozen=True)
class Trace:
    """One forward pass: every module that took a map, and how the last map left the spatial part."""

    visits: tuple[Visit, ...]
    last: str  # the outermost module that returned the last map
    pooled: bool  # that map became a vector of its channels: global pooling, by a module or by a function


class Inserted:
    """The hook: smooths what a module takes or, where pooling is a function that has no module, what it returns."""

    def __init__(self, smooth: Smooth) -> None:
        self.smooth = smooth

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Tensor | None = None) -> Any:
        return (self.smooth(args[0]), *args[1:]) if output is None else self.smooth(output)


def smooth(
    model: Network,
    where: Where = STAGES,
    *,
    kernel: Sequence[float] | str = (1, 1),
    prob: Upper = "tanh",
    tau: float | None = None,
    padding: Padding = "replicate",
    example: Tensor | None = None,
    inplace: bool = False,
) -> Network:
    """A copy of `model` with smoothing before each downsampling and before global pooling (SS Fig. 2).

    `where` may also be names of modules to smooth the input of, or a function (name, module) -> bool. `example` is a
    batch to trace with; without it, images of usual sizes are tried. `smoothed(model)` tells what was inserted.
    """
    target = model if inplace else copy.deepcopy(model)
    if smoothed(target):
        raise InputError("this model already has smoothing layers; take them out with unsmooth(model) first")
    before, after = _choose(target, where, example)
    for name in before:
        layer = Smooth(kernel, prob=prob, tau=tau, padding=padding)
        target.get_submodule(name).register_forward_pre_hook(Inserted(layer))
    for name in after:
        layer = Smooth(kernel, prob=prob, tau=tau, padding=padding)
        target.get_submodule(name).register_forward_hook(Inserted(layer))
    return target


def smoothed(model: nn.Module) -> dict[str, Smooth]:
    """What was inserted: "before NAME" or "after NAME" → the layer."""
    return {f"{side} {name}": hooks[key].smooth for name, side, hooks, key in _hooks(model)}


def unsmooth(model: Network) -> Network:
    """Takes every inserted layer out, in place; the network is what it was."""
    for _, _, hooks, key in _hooks(model):
        del hooks[key]
    return model


def _hooks(model: nn.Module) -> list[tuple[str, str, Any, int]]:
    return [
        (name, side, hooks, key)
        for name, module in model.named_modules()
        for side, hooks in (("before", module._forward_pre_hooks), ("after", module._forward_hooks))
        for key, hook in list(hooks.items())
        if isinstance(hook, Inserted)
    ]


def stages(model: nn.Module, example: Tensor | None = None) -> tuple[list[str], list[str]]:
    """Names of the modules to smooth before, in the order of execution, and to smooth after (functional pooling)."""
    run = trace(model, example)
    image = run.visits[0].took if run.visits else 0
    found: list[str] = []
    ends = False
    for visit in run.visits:
        smaller = visit.size_out == () or visit.size_out < visit.size_in
        if not smaller or visit.took == image or visit.convolutions < 2:
            continue
        if max(visit.size_in) < 2 or any(visit.name.startswith(f + ".") for f in found):
            continue
        inner = [v for v in run.visits if v.name.startswith(visit.name + ".") and v.took == visit.took]
        heads = [v for v in inner if not any(v.name.startswith(o.name + ".") for o in inner)]
        if len(heads) == 1:
            continue  # hands its input on to one child: the child, or what follows it, is the place
        if visit.size_out == () and not run.pooled:
            continue  # flattened, every point on its own: no global pooling
        found.append(visit.name)
        ends = ends or visit.size_out == () or max(visit.size_out) == 1
    return found, [run.last] if run.pooled and not ends else []


def trace(model: nn.Module, example: Tensor | None = None) -> Trace:
    """One forward pass in evaluation mode; hooks and modes are put back."""
    visits: list[Visit] = []
    alive: list[Tensor] = []  # keeps identities apart while tracing
    stack: list[int] = []
    seen, last, channels, vector = 0, "", 0, 0

    def enter(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            nonlocal vector
            x = args[0] if args and isinstance(args[0], Tensor) else None
            stack.append(len(visits) if x is not None and x.ndim == 4 else -1)
            if x is not None and x.ndim == 4:
                alive.append(x)
                visits.append(Visit(name, id(x), tuple(x.shape[2:]), (), seen))
            elif x is not None and x.ndim == 2:
                vector = vector or int(x.shape[1])

        return hook

    def leave(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        nonlocal seen, last, channels, vector
        seen += isinstance(module, nn.modules.conv._ConvNd)
        at = stack.pop()
        if at >= 0 and isinstance(out, Tensor) and out.ndim == 4:
            v = visits[at]
            alive.append(out)
            visits[at] = Visit(v.name, v.took, v.size_in, tuple(out.shape[2:]), v.convolutions)
            if max(out.shape[2:]) > 1:
                last, channels, vector = v.name, int(out.shape[1]), 0

    hooks = [m.register_forward_pre_hook(enter(name)) for name, m in model.named_modules() if name]
    hooks += [m.register_forward_hook(leave) for name, m in model.named_modules() if name]
    flags = [(m, m.training) for m in model.modules()]
    try:
        model.eval()
        with torch.no_grad():
            _run(model, example)
    finally:
        for hook in hooks:
            hook.remove()
        for m, flag in flags:
            m.training = flag
    return Trace(tuple(visits), last, pooled=vector == channels > 0)


def _run(model: nn.Module, example: Tensor | None) -> None:
    if example is not None:
        model(example)
        return
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    if first is None:
        raise InputError(f"{type(model).__name__} has no 2-d convolution, so no spatial stage to smooth")
    failures = []
    for size in SIZES:
        x = torch.zeros(2, first.in_channels, size, size, device=first.weight.device, dtype=first.weight.dtype)
        try:
            model(x)
        except (RuntimeError, ValueError) as error:
            failures.append(str(error).splitlines()[0])
        else:
            return
    raise InputError(
        f"tracing failed with images of {SIZES} pixels ({failures[-1]}); pass example=, a batch that works"
    )


def _choose(model: nn.Module, where: Where, example: Tensor | None) -> tuple[list[str], list[str]]:
    """(modules to smooth before, modules to smooth after)"""
    modules = {name: m for name, m in model.named_modules() if name}
    if isinstance(where, str) and where == STAGES:
        before, after = stages(model, example)
        if not before and not after:
            kind = type(model).__name__
            raise InputError(f"{kind} has no stage that makes a feature map smaller; name modules by where=")
        return before, after
    if callable(where):
        names = [name for name, m in modules.items() if where(name, m)]
    else:
        names = [where] if isinstance(where, str) else list(where)
        names = [] if any(name not in modules for name in names) else names
    if not names:
        known = [v.name for v in trace(model, example).visits][:12]
        raise InputError(f"where={where!r} matches no module; some that take a feature map: {', '.join(known)}")
    return names, []
