"""A network of the user's own in a recipe: `network.name=my.module:net` on the command line, `network=` in Python.

A recipe stores only the network's name, because a file never runs code. To train or load such a run, pass the network
again: as typed text, as a function that makes it, or as a module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

from torch import nn

from calibrant.data.factory import find_factory
from calibrant.errors import InputError
from calibrant.nn import in_library
from calibrant.training.recipe import Recipe
from calibrant.training.settings import Choice

Own = str | nn.Module | Callable[..., nn.Module]
"""`module:factory` as the user typed it, a function that makes a network, or the network."""


def is_own(name: str) -> bool:
    """Whether a recipe's network is Python code, which only the user can name."""
    return ":" in name and not in_library(name)


def with_own(recipe: Recipe, given: Own) -> Recipe:
    """The recipe with the name of the user's network, without the options of the network that it replaces."""
    if isinstance(given, str):
        return recipe if recipe.network.name == given else replace(recipe, network=Choice(given))
    if isinstance(given, nn.Module):
        if recipe.members > 1:
            raise InputError(f"one network cannot be {recipe.members} members; pass a function that makes a new one")
        if recipe.targets.name == "ar_adals":
            raise InputError("ar_adals also trains a vanilla twin; pass a function that makes a new network")
        return replace(recipe, network=Choice(f"python:{type(given).__name__}"))
    return replace(recipe, network=Choice(f"python:{getattr(given, '__name__', type(given).__name__)}"))


def maker(name: str, given: Own | None, where: str, remedy: str) -> Callable[..., nn.Module] | None:
    """The function that makes the network of a recipe; None if its name is in a table or a library."""
    if not is_own(name):
        return None
    if given is None:
        raise InputError(
            f"{where} names Python code for its network, {name!r}, and a file alone never runs code; if you trust it, "
            f"repeat it: {remedy}"
        )
    if isinstance(given, str):
        module, _, function = given.partition(":")
        return find_factory(module, function, f"network {given!r}")
    if isinstance(given, nn.Module):
        return lambda: given
    return given


def copied(given: Own | None) -> Own | None:
    """A copy of the user's network, to load weights into."""
    return (lambda: copy.deepcopy(given)) if isinstance(given, nn.Module) else given
