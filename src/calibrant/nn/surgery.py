"""`calibrant.smooth(model)`: insert smoothing layers into any network, without changing its code or its weights.

One forward pass is traced to find the stages (`nn/stages.py` has the rules). A smoothing layer is a hook on a module
(`nn/insertion.py`): names, parameters and the `state_dict` stay as they are, copies of the network have it too, and
`unsmooth` removes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from calibrant.errors import InputError
from calibrant.nn.blur import Padding, check_map
from calibrant.nn.global_pooling import global_poolings, image_too_small
from calibrant.nn.insertion import Inserted, Side, deep_copy, hooks, insert, inserted, remove
from calibrant.nn.operations import CONVOLUTIONS
from calibrant.nn.smoothing import Smooth, Upper
from calibrant.nn.stages import Place, Unreachable, places
from calibrant.nn.tracing import Trace
from calibrant.nn.tracing import trace as run_once

Network = TypeVar("Network", bound=nn.Module)
Where = str | Sequence[str] | Callable[[str, nn.Module], bool]

STAGES = "before-downsampling"
SIZES = (32, 64, 224, 299)
"""The sizes of image that are traced, in turn, when no example is given."""
LISTED = 20
"""The most names that an error lists."""


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
    """Return a copy of `model` with smoothing before each downsampling and before global pooling (SS Fig. 4).

    `where` may also name modules whose input to smooth ("after NAME": their output), or be a function
    (name, module) -> bool. `example` is a batch to trace with, or a tuple or dict of arguments; without it, images of
    usual sizes are tried. `smoothed(model)` returns the inserted layers, and `unsmooth(model)` removes them.
    """
    _refuse_other(model)
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise InputError("this model is compiled; smooth the network first, then torch.compile it")
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("this model is TorchScript, which takes no layers; smooth the network that it was made from")
    if smoothed(model):
        raise InputError("this model already has smoothing layers; remove them with unsmooth(model) first")
    if isinstance(where, str) and where == STAGES and _strides_taken_over(model):
        raise InputError("BlurPool hides the stages of this model; unblurpool(model), smooth it, then blurpool again")
    if not convolutions(model) and example is None:
        if any(".quantized" in type(m).__module__ for m in model.modules()):
            raise InputError("this model is quantised, and whole numbers take no average; smooth it before quantising")
        raise _no_convolution(model, " (if it convolves by functions alone, pass example=, a batch)")
    Smooth(kernel, prob=prob, tau=tau, padding=padding)  # refuses wrong settings before anything is copied
    _refuse_lazy(model)
    target = model if inplace else deep_copy(model)
    chosen = _choose(target, where, example, prob)
    layers = [Smooth(kernel, prob=prob, tau=tau, padding=padding, axes=place.axes) for place in chosen]
    for place, layer in zip(chosen, layers, strict=True):
        if example is not None and place.size:
            try:
                check_map((1, 1, *place.size), len(layer.blur.taps), place.axes)
            except InputError as error:
                raise InputError(f"{place}: {error}, or leave this module out of where=") from None
    for place, layer in zip(chosen, layers, strict=True):
        insert(target, Inserted(layer, place.name, place.side))
    return target


def smoothed(model: nn.Module) -> dict[str, Smooth]:
    """Return the inserted layers: "before NAME" or "after NAME" → the layer."""
    _refuse_other(model)
    return {f"{hook.side} {name}": hook.layer for name, _, hook in inserted(model)}


def unsmooth(model: Network) -> Network:
    """Remove every smoothing layer, in place."""
    _refuse_other(model)
    for _, module, hook in inserted(model):
        remove(module, hook)
    return model


def convolutions(model: nn.Module) -> list[Any]:
    return [m for m in model.modules() if isinstance(m, nn.modules.conv._ConvNd)]


def _refuse_other(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"smooth a network (torch.nn.Module), not {type(model).__name__}")


def _no_convolution(model: nn.Module, but: str = "") -> InputError:
    return InputError(f"{type(model).__name__} has no convolution, so no spatial stage to smooth; give a CNN{but}")


def _refuse_lazy(model: nn.Module) -> None:
    if any(nn.parameter.is_lazy(t) for t in (*model.parameters(), *model.buffers())):
        raise InputError(
            f"{type(model).__name__} has lazy layers, which get their shape from a first batch; run one first"
        )


def _strides_taken_over(model: nn.Module) -> bool:
    """Return whether BlurPool's hooks subsample instead of the network's own layers."""
    return any(hasattr(hook, "strided") for m in model.modules() for hook in hooks(m))


def trace(model: nn.Module, example: Any = None) -> Trace:
    """Trace one forward pass. Without an example, take the smallest usual image whose last map has several points."""
    _refuse_lazy(model)
    if example is not None:
        try:
            return run_once(model, example)
        except Exception as error:
            raise InputError(f"the network does not run on this example: {_first_line(error)}") from error
    failure = ""
    # The most axes first: a 1-d convolution refuses images, but a 2-d one takes [2, C, L] for an image of 2 channels.
    for first in sorted({len(m.kernel_size): m for m in reversed(convolutions(model))}.items(), reverse=True):
        found, failed = _trace_on_images(model, *first)
        if found is not None:
            return found
        failure = failure or failed
    raise InputError(f"tracing failed with images of {SIZES} pixels ({failure}); pass example=, a batch that works")


def _trace_on_images(model: nn.Module, axes: int, first: Any) -> tuple[Trace | None, str]:
    """Trace images with `axes` spatial axes and as many channels as the `first` convolution takes. Return the trace, or
    None, and why the network did not run."""
    failure, kept = "", None
    for size in SIZES:
        x = torch.zeros(2, first.in_channels, *[size] * axes, device=first.weight.device)
        try:
            found = run_once(model, x.to(first.weight.dtype))
        except Exception as error:
            failure = failure or _first_line(error)
            continue
        complete = global_poolings(found) and not image_too_small(found)
        if complete or (kept is not None and _names(found) == _names(kept)):
            return found, ""
        kept = found
    return kept, failure


def _names(run: Trace) -> list[str]:
    return [str(p) for p in places(run)[0]]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _choose(model: nn.Module, where: Where, example: Any, prob: Upper) -> list[Place]:
    modules = {name: m for name, m in model.named_modules(remove_duplicate=False) if name}
    if isinstance(where, str) and where == STAGES:
        run = trace(model, example)
        found, missed = places(run, prob=prob != "identity")
        if missed:
            raise _refusal(model, example, found, missed[0])
        if not any(op.name in CONVOLUTIONS for op in run.operations):
            raise _no_convolution(model)
        if not found:
            kind = type(model).__name__
            raise InputError(f"{kind} has no stage that makes a feature map smaller; name modules by where=")
        return found
    if callable(where):
        check_predicate(where)
        chosen = [name for name, m in model.named_modules() if name and where(name, m)]
        missing = [] if chosen else ["the function where="]
    else:
        chosen = unique_names(where, f"{STAGES!r}, names of modules, or a function")
        missing = [repr(name) for name in chosen if _side(name)[1] not in modules] if chosen else ["an empty where="]
    if missing:
        raise InputError(f"{', '.join(missing)} matches no module; {_available(model, example)}")
    try:
        run = trace(model, example)
    except InputError:
        if example is not None:
            raise
        named = (_unchecked(model, name) for name in chosen)  # the network takes images of another size
    else:
        named = (_named(model, run, *_side(name), modules, example) for name in chosen)
    return list(dict.fromkeys(named))


def _refusal(model: nn.Module, example: Any, found: list[Place], missed: Unreachable) -> InputError:
    names = ", ".join(p.name if p.side == "before" else str(p) for p in found)
    nearby = f" ({missed.nearby})" if missed.nearby else ""
    return InputError(
        f"{missed.operation} subsamples {missed.why}; make it a module, or name places by where={nearby}"
        + (f", such as those that were found: {names}" if names else f"; {_available(model, example)}")
    )


def unique_names(where: Any, remedy: str) -> list[str]:
    """Return the one or several names in `where=`, each once."""
    names = [where] if isinstance(where, str) else list(where) if isinstance(where, Iterable) else [where]
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise InputError(f"where={wrong[0]!r} is not a name; give {remedy}")
    return list(dict.fromkeys(names))


def check_predicate(where: Callable[..., Any]) -> None:
    """Refuse a function that cannot be called as where(name, module)."""
    try:
        signature = inspect.signature(where)
    except (TypeError, ValueError):
        return  # a function written in C has no signature
    try:
        signature.bind("name", nn.Identity())
    except TypeError as error:
        raise InputError(f"where= is a function where(name, module) -> bool; this one takes {signature}") from error


def _named(model: nn.Module, run: Trace, side: Side, name: str, modules: dict[str, nn.Module], example: Any) -> Place:
    """Return the requested place, or raise an error if the module takes or returns no map."""
    calls = [c for c in run.calls if modules[c.name] is modules[name]]  # a module may have several names
    if not calls:
        raise InputError(
            f"{name!r} is never called in a forward pass, so it cannot be smoothed; {_available(model, example)}"
        )
    numbers = [c.took if side == "before" else c.gave for c in calls]
    others = [_axes(run, c.gave if side == "before" else c.took) for c in calls]
    axes, number = [_axes(run, n) for n in numbers], numbers[-1]
    if not all(axes):
        shape = f"shape {run.shapes[number]}" if number in run.shapes else "no tensor"
        other = f"{'after' if side == 'before' else 'before'} {name}"
        hint = f"where={other!r} is one; " if all(others) else ""
        raise InputError(f"{side} {name!r} there is {shape}, not a feature map; {hint}{_available(model, example)}")
    if len(set(axes)) > 1:
        said = " and ".join(map(str, sorted(set(axes))))
        raise InputError(f"{name!r} is called on maps of {said} axes; smooth modules that are called on one kind")
    return Place(side, name, run.size(number), axes[0])


def _axes(run: Trace, number: int) -> int:
    """Return the number of spatial axes of a map, or of a tensor that has the shape of one; 0 for anything else."""
    kinds = {len(run.size(n)) for n in run.maps}
    rank = len(run.shapes.get(number, ()))
    return rank - 2 if number in run.maps or rank - 2 in kinds else 0


def _unchecked(model: nn.Module, name: str) -> Place:
    """Return the requested place in a network that cannot be traced without an example."""
    kinds = {len(m.kernel_size) for m in convolutions(model)}
    if len(kinds) > 1:
        said = " and ".join(map(str, sorted(kinds)))
        raise InputError(
            f"this network convolves over {said} axes; pass example=, a batch that shows which {name!r} has"
        )
    return Place(*_side(name), axes=kinds.pop())


def _side(name: str) -> tuple[Side, str]:
    """Split "after NAME" or "before NAME", as `smoothed` returns them; a bare name means before."""
    side, _, rest = name.partition(" ")
    if side == "after" and rest:
        return "after", rest
    return "before", rest if side == "before" and rest else name


def _available(model: nn.Module, example: Any) -> str:
    """Return a list of the modules that take a feature map, for an error."""
    run = trace(model, example)
    taking = list(dict.fromkeys(c.name for c in run.calls if run.size(c.took)))
    more = f" and {len(taking) - LISTED} more" if len(taking) > LISTED else ""
    taking.sort(key=lambda name: name.count("."))  # stages before their layers
    return f"modules that take a feature map: {', '.join(taking[:LISTED])}{more}"
