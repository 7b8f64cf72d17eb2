"""When the end of a stage can take a layer in a hook's stead: only in our own networks, where nobody else can tell.

Where the stage ends with a block's ReLU and the layer begins with one, the layer stands in that ReLU's place, an
`Ending`: the block then hands on the smoothed map, and none that had no ReLU is anywhere to be seen.

A trace is of evaluation mode, where dropout hands on the very map it is given; and who calls parts of a network by
itself, or returns the maps between them, is not in it at all.
"""

from __future__ import annotations

from torch import nn

from calibrant.nn import blocks
from calibrant.nn.insertion import Ending, Passage, Through
from calibrant.nn.stages import Place
from calibrant.nn.tracing import Trace


def passage(model: nn.Module, run: Trace, place: Place, rectifies: bool) -> Through:
    """The passage that stands in this place: one that hands on this map, in a network of ours that runs as it was
    written, with nothing between the two that could do more to the map in training than in this trace. And for a layer
    that `rectifies` what it is given the ending before it."""
    found = _passage(model, run, place)
    return Through(found, _ending(model, run, place)) if found and rectifies else Through(found)


def _passage(model: nn.Module, run: Trace, place: Place) -> str:
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
    return "" if place.side == "before" and elsewhere else found[0]


def _ending(model: nn.Module, run: Trace, place: Place) -> str:
    """The ReLU that made the map, as the last thing that a block of ours does, if nobody listens to what is given."""
    modules = dict(model.named_modules(remove_duplicate=False))
    giving = [c for c in run.calls if c.gave == place.number]
    endings = [c.name for c in giving if type(modules[c.name]) is Ending]
    if len(endings) != 1 or type(modules[_owner(modules, endings[0])]) not in (blocks.Basic, blocks.Bottleneck):
        return ""
    return "" if any(modules[c.name]._forward_hooks for c in giving) else endings[0]


def _owner(modules: dict[str, nn.Module], name: str) -> str:
    """The network that a module is part of: the nearest one around it that is no container of torch's."""
    while name:
        name = name.rpartition(".")[0]
        if not type(modules[name]).__module__.startswith("torch.nn."):
            return name
    return ""
