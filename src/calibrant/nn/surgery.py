"""`calibrant.smooth(model)`: smoothing layers in anyone's network, without a fork and without touching its weights.

The stages are found by tracing one forward pass (`nn/stages.py` says where the layers go and why). A smoothing layer is
a hook on the module that follows it: names, parameters and `state_dict` stay as they are, copies take it along, and
`unsmooth` takes exactly it out again.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from calibrant.errors import InputError
from calibrant.nn.blur import Padding, check_map
from calibrant.nn.smoothing import Smooth, Upper
from calibrant.nn.stages import Place, global_pooling, places
from calibrant.nn.tracing import Trace, axes_of
from calibrant.nn.tracing import trace as run_once

Network = TypeVar("Network", bound=nn.Module)
Where = str | Sequence[str] | Callable[[str, nn.Module], bool]

STAGES = "before-downsampling"
SIZES = (32, 64, 224, 299)
"""Edges tried for the image of the trace when no example is given."""
LISTED = 20


class Inserted:
    """The hook: smooths what a module takes or, where pooling is a function that has no module, what it returns."""

    def __init__(self, layer: nn.Module, name: str) -> None:
        self.layer, self.name, self.key = layer, name, -1

    def __setstate__(self, state: dict[str, Any]) -> None:
        # torch numbers hooks by a counter of the process: in another one, a new hook would get this one's number
        vars(self).update(state)
        RemovableHandle.next_id = max(RemovableHandle.next_id, self.key + 1)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any = None) -> Any:
        taken = output if output is not None else args[0] if args else None
        if not isinstance(taken, Tensor):
            said = "returned" if output is not None else "took as its first argument"
            raise InputError(f"{self.name!r} {said} {type(taken).__name__}, not a feature map; smooth another module")
        try:
            smoothed = self.layer(taken)
        except InputError as error:
            raise InputError(f"{'before' if output is None else 'after'} {self.name!r}: {error}") from None
        return smoothed if output is not None else (smoothed, *args[1:])


def smooth(
    model: Network,
    where: Where = STAGES,
    *,
    kernel: Sequence[float] | str = (1, 1),
    prob: Upper = "tanh",
    tau: float | None = None,
    padding: Padding = "replicate",
    example: Any = None,
    inplace: bool = False,
) -> Network:
    """A copy of `model` with smoothing before each downsampling and before global pooling (SS Fig. 4).

    `where` may also be names of modules to smooth the input of ("after NAME": the output), or a function
    (name, module) -> bool. `example` is a
    batch to trace with (or a tuple or dict of arguments); without it, images of usual sizes are tried.
    `smoothed(model)` tells what was inserted, `unsmooth(model)` takes it out.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"smooth a network (torch.nn.Module), not {type(model).__name__}")
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise InputError("this model is compiled; smooth the network first, then torch.compile it")
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("this model is TorchScript, which takes no layers; smooth the network that it was made from")
    if smoothed(model):
        raise InputError("this model already has smoothing layers; take them out with unsmooth(model) first")
    if isinstance(where, str) and where == STAGES and _strides_taken_over(model):
        raise InputError("BlurPool hides the stages of this model; unblurpool(model), smooth it, then blurpool again")
    axes = axes_of(model)
    if not axes:
        raise InputError(f"{type(model).__name__} has no convolution, so no spatial stage to smooth; give a CNN")
    chosen = _choose(model, where, example)
    layers = [Smooth(kernel, prob=prob, tau=tau, padding=padding, axes=axes) for _ in chosen]
    for place, layer in zip(chosen, layers, strict=True):
        if example is not None and place.size:
            try:
                check_map((1, 1, *place.size), len(layer.blur.taps), axes)
            except InputError as error:
                raise InputError(f"{place}: {error}, or leave this module out of where=") from None
    target = model if inplace else copied(model)
    for place, layer in zip(chosen, layers, strict=True):
        module, hook = target.get_submodule(place.name), Inserted(layer, place.name)
        register = module.register_forward_pre_hook if place.side == "before" else module.register_forward_hook
        hook.key = register(hook).id
    return target


def smoothed(model: nn.Module) -> dict[str, Smooth]:
    """What was inserted: "before NAME" or "after NAME" → the layer."""
    return {f"{side} {name}": hooks[key].layer for name, side, hooks, key in inserted(model)}


def unsmooth(model: Network) -> Network:
    """Takes every inserted layer out, in place; the network is what it was."""
    for _, _, hooks, key in inserted(model):
        del hooks[key]
    return model


def inserted(model: nn.Module, kind: type[Inserted] = Inserted) -> list[tuple[str, str, Any, int]]:
    """(module, side, its hooks, key) of every hook of exactly this kind, as they were inserted."""
    found = [
        (name, side, hooks, key)
        for name, module in model.named_modules()
        for side, hooks in (("before", module._forward_pre_hooks), ("after", module._forward_hooks))
        for key, hook in list(hooks.items())
        if type(hook) is kind
    ]
    return sorted(found, key=lambda row: row[3])


def _strides_taken_over(model: nn.Module) -> bool:
    """Whether another surgery's hook subsamples in a layer's stead."""
    hooks = (h for m in model.modules() for h in (*m._forward_pre_hooks.values(), *m._forward_hooks.values()))
    return any(isinstance(h, Inserted) and type(h) is not Inserted for h in hooks)


def copied(model: Network) -> Network:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        raise InputError(f"{type(model).__name__} cannot be copied ({error}); use inplace=True") from error


def stages(model: nn.Module, example: Any = None) -> tuple[list[str], list[str]]:
    """Names of the modules to smooth before, in the order of execution, and to smooth after (functional pooling)."""
    found, _ = places(trace(model, example))
    return [p.name for p in found if p.side == "before"], [p.name for p in found if p.side == "after"]


def trace(model: nn.Module, example: Any = None) -> Trace:
    """One forward pass; without an example, on the smallest usual image whose last map is more than one point."""
    if example is not None:
        try:
            return run_once(model, example)
        except Exception as error:
            raise InputError(f"the network does not run on this example: {_line(error)}") from error
    first = next(m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd))
    failure, kept = "", None
    for size in SIZES:
        x = torch.zeros(2, first.in_channels, *[size] * axes_of(model), device=first.weight.device)
        try:
            found = run_once(model, x.to(first.weight.dtype))
        except Exception as error:
            failure = failure or _line(error)
            continue
        if global_pooling(found) is not None or (kept is not None and _names(found) == _names(kept)):
            return found
        kept = found
    if kept is None:
        raise InputError(f"tracing failed with images of {SIZES} pixels ({failure}); pass example=, a batch that works")
    return kept


def _names(run: Trace) -> list[str]:
    return [str(p) for p in places(run)[0]]


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _choose(model: nn.Module, where: Where, example: Any) -> list[Place]:
    modules = {name: m for name, m in model.named_modules(remove_duplicate=False) if name}
    if isinstance(where, str) and where == STAGES:
        found, lost = places(trace(model, example))
        names = ", ".join(p.name for p in found if p.side == "before")
        if lost:
            raise InputError(
                f"{lost[0]} subsamples a map that no module hands to it; make it a module, or name places by where="
                + (f", such as those that were found: {names}" if names else f"; {_listed(model, example)}")
            )
        if not found:
            kind = type(model).__name__
            raise InputError(f"{kind} has no stage that makes a feature map smaller; name modules by where=")
        return found
    if callable(where):
        chosen = [name for name, m in model.named_modules() if name and where(name, m)]
        missing = [] if chosen else ["the function where="]
    else:
        chosen = [where] if isinstance(where, str) else list(where) if isinstance(where, Iterable) else [where]
        if wrong := [name for name in chosen if not isinstance(name, str)]:
            raise InputError(f"where={wrong[0]!r} is no name; give {STAGES!r}, names of modules, or a function")
        chosen = list(dict.fromkeys(chosen))
        missing = [repr(name) for name in chosen if _side(name)[1] not in modules] if chosen else ["an empty where="]
    if missing:
        raise InputError(f"{', '.join(missing)} matches no module; {_listed(model, example)}")
    try:
        run = trace(model, example)
    except InputError:
        if example is not None:
            raise
        return [Place(*_side(name)) for name in chosen]  # it cannot be run without an example: taken at their word
    ids = {id(modules[c.name]): c for c in run.calls}  # a module may have several names
    out = []
    for side, name in map(_side, chosen):
        call = ids.get(id(modules[name]))
        if call is None:
            raise InputError(
                f"{name!r} is never called in a forward pass, so it cannot be smoothed; {_listed(model, example)}"
            )
        number = call.took if side == "before" else call.gave
        if len(run.shapes.get(number, ())) <= run.axes:
            shape = f"shape {run.shapes[number]}" if number in run.shapes else "no tensor"
            raise InputError(f"{side} {name!r} there is {shape}, not a feature map; {_listed(model, example)}")
        out.append(Place(side, name, run.size(number)))
    return out


def _side(name: str) -> tuple[Literal["before", "after"], str]:
    """ "after NAME" or "before NAME", as `smoothed` tells them; a bare name is before."""
    side, _, rest = name.partition(" ")
    if side == "after" and rest:
        return "after", rest
    return "before", rest if side == "before" and rest else name


def _listed(model: nn.Module, example: Any) -> str:
    """What there is: the modules that take a feature map."""
    run = trace(model, example)
    taking = list(dict.fromkeys(c.name for c in run.calls if run.size(c.took)))
    more = f" and {len(taking) - LISTED} more" if len(taking) > LISTED else ""
    taking.sort(key=lambda name: name.count("."))  # stages before their layers
    return f"modules that take a feature map: {', '.join(taking[:LISTED])}{more}"
