"""When the end of a stage can take a layer in a hook's stead: only in our own networks, where nobody else can tell.

A trace is of evaluation mode, where dropout hands on the very map it is given; and who calls parts of a network by
itself, or returns the maps between them, is not in it at all.
"""

from __future__ import annotations

from torch import nn

from calibrant.nn.insertion import Passage
from calibrant.nn.stages import Place
from calibrant.nn.tracing import Trace


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
    return "" if place.side == "before" and elsewhere else found[0]


def _owner(modules: dict[str, nn.Module], name: str) -> str:
    """The network that a module is part of: the nearest one around it that is no container of torch's."""
    while name:
        name = name.rpartition(".")[0]
        if not type(modules[name]).__module__.startswith("torch.nn."):
            return name
    return ""
