"""`calibrant.smooth(model)`: smoothing layers in anyone's network, without a fork and without touching its weights.

The stages are found by tracing one forward pass (`nn/stages.py` says where the layers go and why). A smoothing layer is
a hook on the module that follows it (`nn/insertion.py`): names, parameters and the `state_dict` stay as they are,
copies take it along, and `unsmooth` takes exactly it out again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

from calibrant.errors import InputError
from calibrant.nn.blur import Padding, check_map
from calibrant.nn.global_pooling import global_poolings, starved
from calibrant.nn.insertion import Inserted, Side, copied, hooks, insert, inserted, take_out
from calibrant.nn.operations import CONVOLUTIONS
from calibrant.nn.smoothing import Smooth, Upper
from calibrant.nn.stages import Lost, Place, places
from calibrant.nn.tracing import Trace
from calibrant.nn.tracing import trace as run_once

Network = TypeVar("Network", bound=nn.Module)
Where = str | Sequence[str] | Callable[[str, nn.Module], bool]

STAGES = "before-downsampling"
SIZES = (32, 64, 224, 299)
"""Edges tried for the image of the trace when no example is given."""
LISTED = 20


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
    _refuse_other(model)
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise InputError("this model is compiled; smooth the network first, then torch.compile it")
    if isinstance(model, torch.jit.ScriptModule):
        raise InputError("this model is TorchScript, which takes no layers; smooth the network that it was made from")
    if smoothed(model):
        raise InputError("this model already has smoothing layers; take them out with unsmooth(model) first")
    if isinstance(where, str) and where == STAGES and _strides_taken_over(model):
        raise InputError("BlurPool hides the stages of this model; unblurpool(model), smooth it, then blurpool again")
    if not convolutions(model) and example is None:
        if any(".quantized" in type(m).__module__ for m in model.modules()):
            raise InputError("this model is quantised, and whole numbers take no average; smooth it before quantising")
        raise _no_convolution(model, " (of one that convolves by functions alone, pass example=, a batch)")
    Smooth(kernel, prob=prob, tau=tau, padding=padding)  # refuses wrong settings before anything is copied
    _refuse_lazy(model)
    target = model if inplace else copied(model)
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
    """What was inserted: "before NAME" or "after NAME" → the layer."""
    _refuse_other(model)
    return {f"{hook.side} {name}": hook.layer for name, _, hook in inserted(model)}


def unsmooth(model: Network) -> Network:
    """Takes every inserted layer out, in place; the network is what it was."""
    _refuse_other(model)
    for _, module, hook in inserted(model):
        take_out(module, hook)
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
            f"{type(model).__name__} has lazy layers, which take shape at their first batch; run one first"
        )


def _strides_taken_over(model: nn.Module) -> bool:
    """Whether another surgery's hook subsamples in a layer's stead."""
    found = (h for m in model.modules() for h in hooks(m))
    return any(isinstance(h, Inserted) and type(h) is not Inserted for h in found)


def stages(model: nn.Module, example: Any = None) -> tuple[list[str], list[str]]:
    """Names of the modules to smooth before, in the order of execution, and to smooth after (functional pooling)."""
    found, _ = places(trace(model, example))
    return [p.name for p in found if p.side == "before"], [p.name for p in found if p.side == "after"]


def trace(model: nn.Module, example: Any = None) -> Trace:
    """One forward pass; without an example, on the smallest usual image whose last map is more than one point."""
    _refuse_lazy(model)
    if example is not None:
        try:
            return run_once(model, example)
        except Exception as error:
            raise InputError(f"the network does not run on this example: {_line(error)}") from error
    failure = ""
    # the most axes first: no 1-d convolution takes an image, but a 2-d one takes [2, C, L] for one image of 2 channels
    for first in sorted({len(m.kernel_size): m for m in reversed(convolutions(model))}.items(), reverse=True):
        found, failed = _trace_on_images(model, *first)
        if found is not None:
            return found
        failure = failure or failed
    raise InputError(f"tracing failed with images of {SIZES} pixels ({failure}); pass example=, a batch that works")


def _trace_on_images(model: nn.Module, axes: int, first: Any) -> tuple[Trace | None, str]:
    """With as many channels as the first convolution of so many axes takes; or why it does not run."""
    failure, kept = "", None
    for size in SIZES:
        x = torch.zeros(2, first.in_channels, *[size] * axes, device=first.weight.device)
        try:
            found = run_once(model, x.to(first.weight.dtype))
        except Exception as error:
            failure = failure or _line(error)
            continue
        if (global_poolings(found) and not starved(found)) or (kept is not None and _names(found) == _names(kept)):
            return found, ""
        kept = found
    return kept, failure


def _names(run: Trace) -> list[str]:
    return [str(p) for p in places(run)[0]]


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _choose(model: nn.Module, where: Where, example: Any, prob: Upper) -> list[Place]:
    modules = {name: m for name, m in model.named_modules(remove_duplicate=False) if name}
    if isinstance(where, str) and where == STAGES:
        run = trace(model, example)
        found, lost = places(run, prob=prob != "identity")
        if lost:
            raise _refused(model, example, found, lost[0])
        if not any(op.name in CONVOLUTIONS for op in run.operations):
            raise _no_convolution(model)
        if not found:
            kind = type(model).__name__
            raise InputError(f"{kind} has no stage that makes a feature map smaller; name modules by where=")
        return found
    if callable(where):
        takes_name_and_module(where)
        chosen = [name for name, m in model.named_modules() if name and where(name, m)]
        missing = [] if chosen else ["the function where="]
    else:
        chosen = names_in(where, f"{STAGES!r}, names of modules, or a function")
        missing = [repr(name) for name in chosen if _side(name)[1] not in modules] if chosen else ["an empty where="]
    if missing:
        raise InputError(f"{', '.join(missing)} matches no module; {_listed(model, example)}")
    try:
        run = trace(model, example)
    except InputError:
        if example is not None:
            raise
        return [_at_its_word(model, name) for name in chosen]  # it cannot be run without an example
    return [_named(model, run, *_side(name), modules, example) for name in chosen]


def _refused(model: nn.Module, example: Any, found: list[Place], lost: Lost) -> InputError:
    names = ", ".join(p.name if p.side == "before" else str(p) for p in found)
    beside = f" ({lost.beside})" if lost.beside else ""
    return InputError(
        f"{lost.operation} subsamples {lost.why}; make it a module, or name places by where={beside}"
        + (f", such as those that were found: {names}" if names else f"; {_listed(model, example)}")
    )


def names_in(where: Any, remedy: str) -> list[str]:
    """The names that `where=` gives, one or several, each once."""
    names = [where] if isinstance(where, str) else list(where) if isinstance(where, Iterable) else [where]
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise InputError(f"where={wrong[0]!r} is not a name; give {remedy}")
    return list(dict.fromkeys(names))


def takes_name_and_module(where: Callable[..., Any]) -> None:
    """Refuse another function than where(name, module)."""
    try:
        signature = inspect.signature(where)
    except (TypeError, ValueError):
        return  # written in C, it tells nothing
    try:
        signature.bind("name", nn.Identity())
    except TypeError as error:
        raise InputError(f"where= is a function where(name, module) -> bool; this one takes {signature}") from error


def _named(model: nn.Module, run: Trace, side: Side, name: str, modules: dict[str, nn.Module], example: Any) -> Place:
    """The place that was asked for, if there is a map."""
    calls = [c for c in run.calls if modules[c.name] is modules[name]]  # a module may have several names
    if not calls:
        raise InputError(
            f"{name!r} is never called in a forward pass, so it cannot be smoothed; {_listed(model, example)}"
        )
    before, after = ([_axes(run, n) for c in calls for n in c.takes or (-1,)], [_axes(run, c.gave) for c in calls])
    axes, others = (before, after) if side == "before" else (after, before)
    none = [n for c in calls for n in c.takes if not _axes(run, n)]  # the inputs that are not maps
    number = (*none, *calls[-1].takes, -1)[0] if side == "before" else calls[-1].gave
    if not all(axes):
        shape = f"shape {run.shapes[number]}" if number in run.shapes else "no tensor"
        other = f"{'after' if side == 'before' else 'before'} {name}"
        hint = f"where={other!r} is one; " if all(others) else ""
        raise InputError(f"{side} {name!r} there is {shape}, not a feature map; {hint}{_listed(model, example)}")
    if len(set(axes)) > 1:
        said = " and ".join(map(str, sorted(set(axes))))
        raise InputError(f"{name!r} is called on maps of {said} axes; smooth modules that are called on one kind")
    return Place(side, name, run.size(number), axes[0])


def _axes(run: Trace, number: int) -> int:
    """The spatial axes of a map, or of what has the shape of one; 0 of anything else."""
    kinds = {len(run.size(n)) for n in run.maps}
    rank = len(run.shapes.get(number, ()))
    return rank - 2 if number in run.maps or rank - 2 in kinds else rank - 1 if run.items and rank - 1 in kinds else 0


def _at_its_word(model: nn.Module, name: str) -> Place:
    kinds = {len(m.kernel_size) for m in convolutions(model)}
    if len(kinds) > 1:
        said = " and ".join(map(str, sorted(kinds)))
        raise InputError(
            f"this network convolves over {said} axes; pass example=, a batch that shows which {name!r} has"
        )
    return Place(*_side(name), axes=kinds.pop())


def _side(name: str) -> tuple[Side, str]:
    """ "after NAME" or "before NAME", as `smoothed` tells them; a bare name is before."""
    side, _, rest = name.partition(" ")
    if side == "after" and rest:
        return "after", rest
    return "before", rest if side == "before" and rest else name


def _listed(model: nn.Module, example: Any) -> str:
    """What there is: the modules that take a feature map."""
    run = trace(model, example)
    taking = list(dict.fromkeys(c.name for c in run.calls if any(map(run.size, c.takes))))
    more = f" and {len(taking) - LISTED} more" if len(taking) > LISTED else ""
    taking.sort(key=lambda name: name.count("."))  # stages before their layers
    return f"modules that take a feature map: {', '.join(taking[:LISTED])}{more}"
