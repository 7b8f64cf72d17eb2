"""When the end of a stage can take a layer in a hook's stead: only in our own networks, where nobody else can tell.

Where the stage ends with a block's ReLU and the layer begins with one, the layer stands in that ReLU's place: the block
then hands on the smoothed map.

A trace is of evaluation mode, where dropout hands on the very map it is given; and who calls parts of a network by
itself, or returns the maps between them, is not in it at all.
"""

from __future__ import annotations

from torch import nn

from calibrant.nn.blocks import Basic, Bottleneck
from calibrant.nn.insertion import Passage
from calibrant.nn.stages import Place
from calibrant.nn.tracing import Trace

AS_WRITTEN = (nn.ReLU, Basic, Bottleneck, nn.Sequential, Passage, nn.Identity)
"""What may hand a map on from a ReLU to its passage: what else it does in training, the trace does not show."""


def passage(model: nn.Module, run: Trace, place: Place) -> str:
    """The name of the passage that stands in this place: one that hands on this map, in a network of ours that runs as
    it was written, with nothing between the two that could do more to the map in training than in this trace."""
    modules = dict(model.named_modules(remove_duplicate=False))
    handing = [c.name for c in run.calls if place.number == c.took == c.gave]  # whatever let the map through
    found = [name for name in handing if type(modules[name]) is Passage]
    if len(found) != 1 or any(type(modules[name]) not in (Passage, nn.Identity) for name in handing):
        return ""
    at = [i for i, c in enumerate(run.calls) if c.name == place.name]
    owner = _owner(modules, found[0])
    called = [c for c in run.calls if c.name == owner]
    ours = type(modules[owner]).__module__.startswith("calibrant.nn.")
    if not ours or len(called) != (1 if owner else 0) or len(at) != 1 or len(run.calls[at[0]].takes) != 1:
        return ""
    elsewhere = [op for op in run.operations if place.number in op.reads and at[0] not in op.inside]
    alone = _once(modules, run, found[0]) and not _heard(modules[found[0]])
    return "" if (place.side == "before" and elsewhere) or not alone else found[0]


def ending(model: nn.Module, run: Trace, place: Place) -> str:
    """The name of the ReLU that made the map before such a passage, as the last thing that a block of ours does; if
    all that hands the map on from there does that alone and once, and nobody listens to it."""
    modules = dict(model.named_modules(remove_duplicate=False))
    giving = [c.name for c in run.calls if c.gave == place.number]
    for module in map(modules.__getitem__, giving):
        if _heard(module) or type(module) not in AS_WRITTEN or "forward" in vars(module):
            return ""
    if not all(_once(modules, run, name) for name in giving):
        return ""
    relus = [name for name in giving if type(modules[name]) is nn.ReLU]
    found = relus[0] if len(relus) == 1 else ""
    return found if type(modules[found.rpartition(".")[0]]) in (Basic, Bottleneck) else ""


def _heard(module: nn.Module) -> bool:
    """Does somebody listen to what it hands on?"""
    after = module._forward_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(after or (isinstance(module, nn.Identity) and module._forward_pre_hooks))


def _once(modules: dict[str, nn.Module], run: Trace, name: str) -> bool:
    """Is the module called once, by whatever name?"""
    return sum(modules[c.name] is modules[name] for c in run.calls) == 1


def _owner(modules: dict[str, nn.Module], name: str) -> str:
    """The network that a module is part of: the nearest one around it that is no container of torch's."""
    while name:
        name = name.rpartition(".")[0]
        if not type(modules[name]).__module__.startswith("torch.nn."):
            return name
    return ""
